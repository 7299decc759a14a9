// Matmuls of few rows with a matrix of contiguous columns: `share` warps of a block share COLUMNS columns, and each
// lane reads sixteen bytes of each at a time. Sums of lanes are added in pairs, those of warps in order.

#define COLUMNS 2

extern "C" __global__ void __launch_bounds__(256) NAME(PARAMETERS) {
    __shared__ float parts[8][ROWS][COLUMNS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int team = warp / (int)share, member = warp % (int)share, teams = 8 / (int)share;
    const bool wide = is_whole(x, x_batch, x_row) && is_whole(w, w_batch, w_leading);
    const long long groups = (n + COLUMNS - 1) / COLUMNS, step = share * 32 * LANES;
    for (long long number = blockIdx.y; number < batch; number += gridDim.y) {
        const IN *left = x + number * x_batch, *right = w + number * w_batch;
        for (long long first = (long long)blockIdx.x * teams; first < groups; first += (long long)gridDim.x * teams) {
            const long long column = (first + team) * COLUMNS;
            float sums[ROWS][COLUMNS] = {};
            if (column < n) {
#pragma unroll 4
                for (long long p = (member * 32 + lane) * LANES; p < k; p += step) {
                    Vector columns[COLUMNS];
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        const long long there = column + c < n ? column + c : column;
                        columns[c] = load(right + there * w_leading, p, k, wide);
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        if (r >= m) break;
                        const Vector row = load(left + r * x_row, p, k, wide);
#pragma unroll
                        for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                            for (int e = 0; e < LANES; e++) {
                                sums[r][c] = fmaf(SUM_OF_IN(row.each[e]), SUM_OF_IN(columns[c].each[e]), sums[r][c]);
                            }
                        }
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    for (int apart = 16; apart > 0; apart /= 2) {
                        sums[r][c] += __shfl_xor_sync(0xffffffffu, sums[r][c], apart);
                    }
                    if (lane == 0) parts[warp][r][c] = sums[r][c];
                }
            }
            __syncthreads();
            if (member == 0 && lane < ROWS * COLUMNS) {
                const int r = lane / COLUMNS, c = lane % COLUMNS;
                if (r < m && column + c < n) {
                    float sum = parts[warp][r][c];
                    for (int other = 1; other < share; other++) sum += parts[warp + other][r][c];
                    FINISH(sum, number, r, column + c);
                }
            }
            __syncthreads();
        }
    }
}
