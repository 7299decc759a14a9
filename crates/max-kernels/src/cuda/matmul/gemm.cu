// c[b, i, j] = sum over p of a[b, i, p] * b[b, p, j], for operands with any strides, in tiles.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *a, const IN *b, OUT *c, long long batch, long long m, long long n, long long k, long long a_batch,
    long long a_row, long long a_col, long long b_batch, long long b_row, long long b_col, long long c_batch,
    long long c_row, long long c_col) {
    __shared__ Slices slices;
    const long long across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
    for (long long number = blockIdx.x; number < across * down * batch; number += gridDim.x) {
        const long long matrix = number / (across * down);
        const long long row = number / across % down * TILE, column = number % across * TILE;
        Tile tile = {};
        for (long long start = 0; start < k; start += DEPTH) {
            fill(slices.left, a_row != 1, [&](const int i, const int p) {
                const bool inside = row + i < m && start + p < k;
                return inside ? SUM_OF_IN(a[matrix * a_batch + (row + i) * a_row + (start + p) * a_col]) : SUM(0);
            });
            fill(slices.right, b_row == 1, [&](const int j, const int p) {
                const bool inside = column + j < n && start + p < k;
                return inside ? SUM_OF_IN(b[matrix * b_batch + (start + p) * b_row + (column + j) * b_col]) : SUM(0);
            });
            add_products(tile, slices);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const long long at_row = row + row_of(i), at_column = column + column_of(j);
                if (at_row < m && at_column < n) {
                    c[matrix * c_batch + at_row * c_row + at_column * c_col] = OUT_OF(tile.sums[i][j]);
                }
            }
        }
    }
}
