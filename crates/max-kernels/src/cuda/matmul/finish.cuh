// The epilogues that functions apply themselves: adds a bias and a residual to a sum, applies an activation, and stores.
#define FINISH(sum, number, row, column) \
    do { \
        float value = (sum); \
        if (HAS_BIAS) value += SUM_OF_OUT(bias[column]); \
        if (HAS_RESIDUAL) { \
            value += SUM_OF_OUT(residual[(number)*residual_batch + (row)*residual_row + (column)*residual_col]); \
        } \
        if (IS_RELU && value < 0.0f) value = 0.0f; \
        if (IS_GELU) { \
            const float inner = 0.7978845608028654f * (value + 0.044715f * value * value * value); \
            value = 0.5f * value * (1.0f + tanhf(inner)); \
        } \
        out[(number)*out_batch + (row)*out_row + (column)*out_col] = OUT_OF(value); \
    } while (0)
