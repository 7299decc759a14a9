// c[b, i, j] = sum over p of a[b, i, p] * b[b, p, j], for operands with any strides.
//
// A block of 256 threads computes tiles of 64 x 64, sixteen elements per thread, from slices of 16 along p that the
// block reads into shared memory. Sums are added in the order of p.

#define TILE 64
#define DEPTH 16

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *a, const IN *b, OUT *c, long long batch, long long m, long long n, long long k, long long a_batch,
    long long a_row, long long a_col, long long b_batch, long long b_row, long long b_col, long long c_batch,
    long long c_row, long long c_col) {
    __shared__ SUM left[DEPTH][TILE + 1];
    __shared__ SUM right[DEPTH][TILE + 1];
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const long long across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
    for (long long tile = blockIdx.x; tile < across * down * batch; tile += gridDim.x) {
        const long long number = tile / (across * down);
        const long long row = tile / across % down * TILE, column = tile % across * TILE;
        SUM sums[4][4] = {};
        for (long long start = 0; start < k; start += DEPTH) {
            for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
                // Neighbouring threads read neighbouring elements, along whichever axis is contiguous.
                const int i = a_row == 1 ? at % TILE : at / DEPTH, p = a_row == 1 ? at / TILE : at % DEPTH;
                const bool inside = row + i < m && start + p < k;
                left[p][i] =
                    inside ? SUM_OF_IN(a[number * a_batch + (row + i) * a_row + (start + p) * a_col]) : SUM(0);
            }
            for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
                const int j = b_row == 1 ? at / DEPTH : at % TILE, p = b_row == 1 ? at % DEPTH : at / TILE;
                const bool inside = column + j < n && start + p < k;
                right[p][j] =
                    inside ? SUM_OF_IN(b[number * b_batch + (start + p) * b_row + (column + j) * b_col]) : SUM(0);
            }
            __syncthreads();
#pragma unroll
            for (int p = 0; p < DEPTH; p++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sums[i][j] = STEP(left[p][y + 16 * i], right[p][x + 16 * j], sums[i][j]);
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const long long at_row = row + y + 16 * i, at_column = column + x + 16 * j;
                if (at_row < m && at_column < n) {
                    c[number * c_batch + at_row * c_row + at_column * c_col] = OUT_OF(sums[i][j]);
                }
            }
        }
    }
}
