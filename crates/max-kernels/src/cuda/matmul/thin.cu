// What the functions for matmuls of few rows share: out[b, r, j] = epilogue(sum over p of x[b, r, p] * w[b, p, j]), for
// up to ROWS rows with unit stride along p.

#define PARAMETERS \
    const IN *x, const IN *w, OUT *out, const OUT *bias, const OUT *residual, long long batch, long long m, long long n, \
        long long k, long long x_batch, long long x_row, long long w_batch, long long w_leading, long long out_batch, \
        long long out_row, long long out_col, long long residual_batch, long long residual_row, \
        long long residual_col, long long share

// The number of elements in sixteen bytes.
#define LANES ((int)(16 / sizeof(IN)))

union Vector {
    uint4 whole;
    IN each[16 / sizeof(IN)];
};

// LANES elements from index `at` on; zeros from index `end` on.
__device__ __forceinline__ Vector load(const IN *from, long long at, long long end, bool wide) {
    Vector read;
    if (wide && at + LANES <= end) {
        read.whole = __ldg((const uint4 *)(from + at));
        return read;
    }
    read.whole = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int e = 0; e < LANES; e++) {
        if (at + e < end) read.each[e] = from[at + e];
    }
    return read;
}

__device__ __forceinline__ bool is_whole(const void *place, long long stride, long long other) {
    return ((unsigned long long)place | (unsigned long long)(stride * sizeof(IN)) |
            (unsigned long long)(other * sizeof(IN))) % 16 == 0;
}
