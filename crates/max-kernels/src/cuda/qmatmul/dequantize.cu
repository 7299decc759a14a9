// Decodes `n` rows of quantized weights to contiguous rows of `k` elements: a warp decodes a chunk at a time.

struct alignas(4 * sizeof(OUT)) Four {
    OUT each[4];
};

// The value of a byte of a word.
__device__ __forceinline__ float value_of(unsigned word, int byte) {
    const unsigned code = word >> (8 * byte) & 255;
    return (float)(IS_SIGNED ? (int)(signed char)code : (int)code);
}

extern "C" __global__ void __launch_bounds__(256) NAME(
    const unsigned char *codes, const unsigned char *scales, OUT *out, long long n, long long k, long long code_row,
    long long scale_row, long long group_size, long long shift) {
    __shared__ __align__(16) unsigned char rows[8][(VECTORS + 3) * 16];
    __shared__ float factors[8][GROUPS][2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, s = lane / 4, t = lane % 4;
    const Weights weights = {codes, scales, code_row, scale_row, (int)group_size, (int)shift};
    const int chunks = (int)((k + CHUNK - 1) / CHUNK);
    unsigned char *const stage = rows[warp], *const scale_stage = stage + VECTORS * 16;
    const long long all = n * chunks;
    for (long long at = (long long)blockIdx.x * 8 + warp; at < all; at += (long long)gridDim.x * 8) {
        const long long row = at / chunks;
        const int chunk = (int)(at - row * chunks);
        const long long left = (k - (long long)chunk * CHUNK) / SLICE;
        const int slices = left < CHUNK / SLICE ? (int)left : CHUNK / SLICE;
        const Weights here = weights.from(row, chunk);
        fetch<VECTORS, 32>(stage, here.codes, slices * SLICE / ELEMENTS * BYTES, lane);
#if IS_APART
        fetch<2, 32>(scale_stage, here.scales, weights.scale_count(chunk, slices), lane);
        const unsigned char *const scale_row_at = scale_stage + skew(here.scales);
#else
        const unsigned char *const scale_row_at = scale_stage;
#endif
        commit();
        wait<0>();
        __syncwarp();
        const unsigned char *const start = stage + skew(here.codes);
        if (lane < GROUPS && lane * GROUP < slices * SLICE) {
            weights.factors(start, scale_row_at, chunk, lane, factors[warp][lane]);
        }
        __syncwarp();
        if (s < slices) {
            unsigned values[2];
            pair<1>(Row<1>(start, t), s * SLICE / ELEMENTS * BYTES, s * SLICE % ELEMENTS, t, values[0], values[1]);
            float decoded[2][4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float *const factor = factors[warp][GROUP == 32 ? s : 2 * s + h];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    decoded[h][e] = factor[0] * value_of(values[h], e);
                    if (HAS_MIN) decoded[h][e] -= factor[1];
                }
            }
            OUT *const to = out + row * k + (long long)chunk * CHUNK + s * SLICE;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                Four four;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    four.each[e] = OUT_OF(INTERLEAVED ? decoded[e % 2][h * 2 + e / 2] : decoded[h][e]);
                }
                *(Four *)(to + (INTERLEAVED ? t * 8 + h * 4 : h * 16 + t * 4)) = four;
            }
        }
        // The next chunk is copied over this one.
        __syncwarp();
    }
}
