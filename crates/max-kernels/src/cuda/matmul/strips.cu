// Products of few rows with matrices of contiguous rows: a block has strips of ACROSS times sixteen bytes, and its threads walk
// down the rows side by side. Sums of lanes are added in pairs, those of warps in order.

#define ACROSS 4
#define DOWN (256 / ACROSS)
#define AT_ONCE 4

template <class Finish> __device__ __forceinline__ void multiply(const Given given, const Matrix matrix, Finish finish) {
    __shared__ float parts[8][ROWS][ACROSS * LANES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    const long long n = matrix.n, k = given.k;
    const bool wide = is_whole(matrix.w, matrix.w_batch, matrix.w_leading);
    const long long strips = (n + ACROSS * LANES - 1) / (ACROSS * LANES);
    for (long long number = blockIdx.y; number < given.batch; number += gridDim.y) {
        const IN *left = given.x + number * given.x_batch, *right = matrix.w + number * matrix.w_batch;
        for (long long strip = matrix.block; strip < strips; strip += matrix.blocks) {
            const long long first = strip * ACROSS * LANES, column = first + across * LANES;
            float sums[ROWS][LANES] = {};
            for (long long p = down; p < k; p += DOWN * AT_ONCE) {
                Vector rows[AT_ONCE];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    const long long at = p + u * DOWN;
                    rows[u] = load(right + (at < k ? at : p) * matrix.w_leading, column, n, wide);
                }
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    const long long at = p + u * DOWN;
                    if (at >= k) break;
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        if (r >= given.m) break;
                        const float factor = SUM_OF_IN(left[r * given.x_row + at]);
#pragma unroll
                        for (int e = 0; e < LANES; e++) {
                            sums[r][e] = fmaf(factor, SUM_OF_IN(rows[u].each[e]), sums[r][e]);
                        }
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int e = 0; e < LANES; e++) {
                    for (int apart = 16; apart >= ACROSS; apart /= 2) {
                        sums[r][e] += __shfl_xor_sync(0xffffffffu, sums[r][e], apart);
                    }
                    if (lane < ACROSS) parts[warp][r][across * LANES + e] = sums[r][e];
                }
            }
            __syncthreads();
            for (int at = threadIdx.x; at < ROWS * ACROSS * LANES; at += 256) {
                const int r = at / (ACROSS * LANES), c = at % (ACROSS * LANES);
                if (r < given.m && first + c < n) {
                    float sum = parts[0][r][c];
                    for (int other = 1; other < 8; other++) sum += parts[other][r][c];
                    finish(sum, number, (long long)r, first + c);
                }
            }
            __syncthreads();
        }
    }
}
