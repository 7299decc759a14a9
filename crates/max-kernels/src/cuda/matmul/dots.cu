// Products of few rows with matrices of contiguous columns: `share` warps of a block share COLUMNS columns, and each lane reads
// sixteen bytes of each at a time. Sums of lanes are added in pairs, those of warps in order.

#define COLUMNS 2
#define AT_ONCE 4

__device__ __forceinline__ void multiply_add(
    float (&sums)[ROWS][COLUMNS], const Given &given, const IN *left, long long p, const Vector (&columns)[COLUMNS], bool wide) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= given.m) break;
        const Vector row = load(left + r * given.x_row, p, given.k, wide);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
            for (int e = 0; e < LANES; e++) {
                sums[r][c] = fmaf(SUM_OF_IN(row.each[e]), SUM_OF_IN(columns[c].each[e]), sums[r][c]);
            }
        }
    }
}

template <class Finish> __device__ __forceinline__ void multiply(const Given given, const Matrix matrix, Finish finish) {
    __shared__ float parts[8][ROWS][COLUMNS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = (int)given.share;
    const int team = warp / share, member = warp % share, teams = 8 / share;
    const long long n = matrix.n, k = given.k;
    const bool wide = is_whole(given.x, given.x_batch, given.x_row) && is_whole(matrix.w, matrix.w_batch, matrix.w_leading);
    const long long groups = (n + COLUMNS - 1) / COLUMNS, step = share * 32 * LANES;
    for (long long number = blockIdx.y; number < given.batch; number += gridDim.y) {
        const IN *left = given.x + number * given.x_batch, *right = matrix.w + number * matrix.w_batch;
        for (long long first = matrix.block * teams; first < groups; first += matrix.blocks * teams) {
            const long long column = (first + team) * COLUMNS;
            float sums[ROWS][COLUMNS] = {};
            if (column < n) {
                const IN *starts[COLUMNS];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    starts[c] = right + (column + c < n ? column + c : column) * matrix.w_leading;
                }
                long long p = (member * 32 + lane) * LANES;
                // Several vectors of each column are on their way at a time.
                if (wide) {
                    for (; p + (AT_ONCE - 1) * step + LANES <= k; p += AT_ONCE * step) {
                        Vector columns[AT_ONCE][COLUMNS];
#pragma unroll
                        for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
                            for (int c = 0; c < COLUMNS; c++) columns[i][c].whole = once(starts[c] + p + i * step);
                        }
#pragma unroll
                        for (int i = 0; i < AT_ONCE; i++) multiply_add(sums, given, left, p + i * step, columns[i], true);
                    }
                }
                for (; p < k; p += step) {
                    Vector columns[COLUMNS];
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) columns[c] = load(starts[c], p, k, wide);
                    multiply_add(sums, given, left, p, columns, wide);
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
                if (r < given.m && column + c < n) {
                    float sum = parts[warp][r][c];
                    for (int other = 1; other < share; other++) sum += parts[warp + other][r][c];
                    finish(sum, number, (long long)r, column + c);
                }
            }
            __syncthreads();
        }
    }
}
