// Products of up to eight rows with matrices of contiguous columns, on tensor cores: a block has sixteen columns at a time, of
// which its warps multiply every eighth piece of PIECE elements. The sums of warps are added in order.
//
// A lane reads eight neighbours of a column at a time. These are the elements that it has in two multiplications: which of the
// sixteen terms of a multiplication an element is does not matter, if it is the same one for both operands.

#define COLUMNS 16
#define WARPS 8
#define AT_ONCE 4
#define STEP (4 * LANES)
#define PIECE (AT_ONCE * STEP)

__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint4 &top, const uint4 &bottom, const uint4 &x) {
    const auto step = [&](unsigned a, unsigned b, unsigned c, unsigned d, unsigned first, unsigned second) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32." BITS "." BITS ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a), "r"(b), "r"(c), "r"(d), "r"(first), "r"(second));
    };
    step(top.x, bottom.x, top.y, bottom.y, x.x, x.y);
    step(top.z, bottom.z, top.w, bottom.w, x.z, x.w);
}

template <class Finish> __device__ __forceinline__ void multiply(const Given given, const Matrix matrix, Finish finish) {
    __shared__ float parts[WARPS][8][COLUMNS + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const long long n = matrix.n, k = given.k;
    const bool wide = is_whole(given.x, given.x_batch, given.x_row) && is_whole(matrix.w, matrix.w_batch, matrix.w_leading);
    const long long tiles = (n + COLUMNS - 1) / COLUMNS;
    for (long long number = blockIdx.y; number < given.batch; number += gridDim.y) {
        // Rows and columns that do not exist are the last one, and not stored.
        const IN *const row = given.x + number * given.x_batch + (g < given.m ? g : given.m - 1) * given.x_row;
        for (long long tile = matrix.block; tile < tiles; tile += matrix.blocks) {
            const auto column = [&](int place) {
                const long long column = tile * COLUMNS + place;
                return matrix.w + number * matrix.w_batch + (column < n ? column : n - 1) * matrix.w_leading;
            };
            const IN *const top = column(g), *const bottom = column(8 + g);
            float sums[4] = {};
            long long p = warp * PIECE + t * LANES;
            if (wide) {
                // Several vectors of each column are on their way at a time.
                for (; p - t * LANES + PIECE <= k; p += WARPS * PIECE) {
                    uint4 pairs[AT_ONCE][2];
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) {
                        pairs[i][0] = once(top + p + i * STEP);
                        pairs[i][1] = once(bottom + p + i * STEP);
                    }
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) {
                        multiply_add(sums, pairs[i][0], pairs[i][1], load(row, p + i * STEP, k, true).whole);
                    }
                }
            }
            for (; p - t * LANES < k; p += WARPS * PIECE) {
#pragma unroll 1
                for (int i = 0; i < AT_ONCE; i++) {
                    const auto part = [&](const IN *from) { return load(from, p + i * STEP, k, wide).whole; };
                    multiply_add(sums, part(top), part(bottom), part(row));
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) parts[warp][t * 2 + i % 2][g + i / 2 * 8] = sums[i];
            __syncthreads();
            const int at = threadIdx.x / COLUMNS, along = threadIdx.x % COLUMNS;
            if (at < given.m && tile * COLUMNS + along < n) {
                float sum = parts[0][at][along];
#pragma unroll
                for (int other = 1; other < WARPS; other++) sum += parts[other][at][along];
                finish(sum, number, (long long)at, tile * COLUMNS + along);
            }
            __syncthreads();
        }
    }
}
