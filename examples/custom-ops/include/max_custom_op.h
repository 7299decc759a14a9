/* Custom ops in shared libraries: the interface of max-rs, version 1.
 *
 * A library exports `max_custom_ops`. It is called with the version that the caller wants, and returns a table that lives
 * as long as the library, or NULL if it has none for that version. */

#ifndef MAX_CUSTOM_OP_H
#define MAX_CUSTOM_OP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAX_CUSTOM_OP_VERSION 1

/* The types of elements. */
enum {
    MAX_BOOL = 1,
    MAX_FLOAT8_E8M0FNU = 62,
    MAX_FLOAT6_E3M2FN = 63,
    MAX_FLOAT4_E2M1FN = 64,
    MAX_FLOAT6_E2M3FN = 65,
    MAX_FLOAT8_E4M3FN = 66,
    MAX_FLOAT8_E4M3FNUZ = 67,
    MAX_FLOAT8_E5M2 = 68,
    MAX_FLOAT8_E5M2FNUZ = 69,
    MAX_FLOAT16 = 70,
    MAX_BFLOAT16 = 71,
    MAX_FLOAT32 = 72,
    MAX_FLOAT64 = 73,
    MAX_UINT8 = 134,
    MAX_INT8 = 135,
    MAX_UINT16 = 136,
    MAX_INT16 = 137,
    MAX_UINT32 = 138,
    MAX_INT32 = 139,
    MAX_UINT64 = 140,
    MAX_INT64 = 141
};

/* The kinds of parameters. */
enum { MAX_PARAMETER_BOOL = 0, MAX_PARAMETER_INT = 1, MAX_PARAMETER_STR = 2, MAX_PARAMETER_DTYPE = 3 };

/* Elements in row-major order without gaps. On a GPU, data is an address there. */
typedef struct max_tensor {
    void *data;
    const int64_t *shape;
    int64_t elements;
    int32_t rank;
    int32_t dtype;
} max_tensor;

/* A parameter: text for MAX_PARAMETER_STR, else a number. */
typedef struct max_parameter {
    const char *name;
    const char *text;
    int64_t number;
    int32_t kind;
} max_parameter;

/* A call. Operands are read, but for those that the signature marks with '&'; results are written, and hold anything
 * before. All of it is only valid during the call. */
typedef struct max_call {
    const max_tensor *operands;
    const max_tensor *results;
    const max_parameter *parameters;
    uint32_t num_operands;
    uint32_t num_results;
    uint32_t num_parameters;
    uint32_t message_bytes;
    /* Where to write why it failed, ending in a zero. */
    char *message;
    /* For a GPU, the CUstream to enqueue all work on; else NULL. */
    void *stream;
} max_call;

/* An op. */
typedef struct max_op {
    const char *name;
    /* What it takes and returns, such as "T[n, k], float32[k] -> T[n]"; NULL for anything. */
    const char *signature;
    /* Returns 0, or anything else if it failed. It may be called from several threads at once, and must not throw. */
    int32_t (*run)(const max_call *call);
    /* 0 for the host, 1 for GPUs. */
    int32_t on_gpu;
} max_op;

typedef struct max_op_table {
    uint32_t version;
    uint32_t num_ops;
    const max_op *ops;
} max_op_table;

const max_op_table *max_custom_ops(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif
