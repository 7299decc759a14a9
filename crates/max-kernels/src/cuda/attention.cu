// Attention of 16-bit floats in one pass over the keys, on tensor cores (sm_80 and later).
//
// A block has four warps with ROWS times 16 queries each, and walks the keys 64 at a time. Scores, weights and results
// stay in registers; weights are relative to the greatest score so far, and the sums are rescaled when that grows. Keys
// and values are staged through shared memory, the next tile while the current one is used. This text is preceded by
// definitions of NAME, ROWS (1 or 2), HALF (1 for f16, 0 for bf16), DEPTH and WIDTH (multiples of 8), MASK (0 none, 1
// bool, 2 added), CAUSAL and WINDOW (0 or 1). There are four batch axes; strides are in elements.

constexpr int QUERIES = 64 * ROWS, KEYS = 64;
constexpr int DEEP = (DEPTH + 15) / 16 * 16, WIDE = (WIDTH + 15) / 16 * 16;
// Rows of shared memory are padded, so that neighbouring rows start in different banks.
constexpr int KEY_ROW = DEEP + 8, VALUE_ROW = WIDE + 8;

extern "C" __global__ void __launch_bounds__(128)
NAME(const u16 *query, const u16 *key, const u16 *value, const void *mask, u16 *out,
     i64 queries, i64 keys, i64 tiles, double scale, i64 shift, i64 window,
     i64 size1, i64 size2, i64 size3,
     i64 query0, i64 query1, i64 query2, i64 query3, i64 query_row,
     i64 key0, i64 key1, i64 key2, i64 key3, i64 key_row,
     i64 value0, i64 value1, i64 value2, i64 value3, i64 value_row,
     i64 mask0, i64 mask1, i64 mask2, i64 mask3, i64 mask_row, i64 mask_column,
     i64 out0, i64 out1, i64 out2, i64 out3, i64 out_row) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *const key_tiles = shared, *const value_tiles = shared + 2 * KEYS * KEY_ROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Where this block is in the batch. With causal attention the last queries see the most keys, so they go first.
    u32 rest = blockIdx.x / (u32)tiles;
    const u32 tile = CAUSAL ? (u32)tiles - 1 - blockIdx.x % (u32)tiles : blockIdx.x % (u32)tiles;
    const u32 at3 = rest % (u32)size3;
    rest /= (u32)size3;
    const u32 at2 = rest % (u32)size2;
    rest /= (u32)size2;
    const u32 at1 = rest % (u32)size1, at0 = rest / (u32)size1;
    query += at0 * query0 + at1 * query1 + at2 * query2 + at3 * query3;
    key += at0 * key0 + at1 * key1 + at2 * key2 + at3 * key3;
    value += at0 * value0 + at1 * value1 + at2 * value2 + at3 * value3;
    out += at0 * out0 + at1 * out1 + at2 * out2 + at3 * out3;
    const i64 mask_at = at0 * mask0 + at1 * mask1 + at2 * mask2 + at3 * mask3;

    const i64 first_query = (i64)tile * QUERIES;
    const i64 first_row = first_query + warp * 16 * ROWS + lane / 4;

    // The keys that any query of the block sees.
    i64 first_key = 0, end_key = keys;
    if (CAUSAL) {
        end_key = min(keys, first_query + QUERIES + shift);
        if (WINDOW) first_key = max((i64)0, first_query + shift - window + 1) / KEYS * KEYS;
    }

    auto load = [&](i64 from, int stage) {
        u16 *const key_tile = key_tiles + stage * KEYS * KEY_ROW;
        u16 *const value_tile = value_tiles + stage * KEYS * VALUE_ROW;
        for (int chunk = threadIdx.x; chunk < KEYS * DEEP / 8; chunk += 128) {
            const int row = chunk / (DEEP / 8), column = chunk % (DEEP / 8) * 8;
            const bool there = from + row < keys && column < DEPTH;
            fetch(in_shared(key_tile + row * KEY_ROW + column),
                  there ? key + (from + row) * key_row + column : key, there);
        }
        for (int chunk = threadIdx.x; chunk < KEYS * WIDE / 8; chunk += 128) {
            const int row = chunk / (WIDE / 8), column = chunk % (WIDE / 8) * 8;
            const bool there = from + row < keys && column < WIDTH;
            fetch(in_shared(value_tile + row * VALUE_ROW + column),
                  there ? value + (from + row) * value_row + column : value, there);
        }
        asm volatile("cp.async.commit_group;");
    };
    if (first_key < end_key) load(first_key, 0);

    u32 own[ROWS][DEEP / 16][4];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int step = 0; step < DEEP / 16; step++)
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const i64 row = first_row + r * 16 + part % 2 * 8;
                const int column = step * 16 + lane % 4 * 2 + part / 2 * 8;
                own[r][step][part] =
                    row < queries && column < DEPTH ? *(const u32 *)(query + row * query_row + column) : 0;
            }

    const float factor = (float)scale * LOG2_E, hidden = -__int_as_float(0x7f800000);
    float results[ROWS][WIDE / 8][4] = {}, greatest[ROWS][2], sums[ROWS][2];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        greatest[r][0] = greatest[r][1] = hidden;
        sums[r][0] = sums[r][1] = 0.0f;
    }

    for (i64 from = first_key; from < end_key; from += KEYS) {
        const int stage = (int)((from - first_key) / KEYS % 2);
        if (from + KEYS < end_key) {
            load(from + KEYS, stage ^ 1);
            fetched<1>();
        } else {
            fetched<0>();
        }
        __syncthreads();
        const u16 *const key_tile = key_tiles + stage * KEYS * KEY_ROW;
        const u16 *const value_tile = value_tiles + stage * KEYS * VALUE_ROW;

        float scores[ROWS][KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < DEEP / 16; step++)
#pragma unroll
            for (int pair = 0; pair < KEYS / 16; pair++) {
                u32 b[4];
                matrices(b, in_shared(key_tile + (pair * 16 + lane / 16 * 8 + lane % 8) * KEY_ROW + step * 16 +
                                      lane / 8 % 2 * 8));
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    multiply(scores[r][pair * 2], own[r][step], b[0], b[1]);
                    multiply(scores[r][pair * 2 + 1], own[r][step], b[2], b[3]);
                }
            }

        const bool edge = from + KEYS > keys || CAUSAL && from + KEYS - 1 > first_query + shift ||
                          CAUSAL && WINDOW && from <= first_query + QUERIES - 1 + shift - window;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float highest[2] = {greatest[r][0], greatest[r][1]};
#pragma unroll
            for (int tile = 0; tile < KEYS / 8; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float score = scores[r][tile][i] * factor;
                    const i64 row = first_row + r * 16 + i / 2 * 8;
                    const i64 column = from + tile * 8 + lane % 4 * 2 + i % 2;
                    if (MASK && row < queries && column < keys) {
                        const i64 at = mask_at + row * mask_row + column * mask_column;
                        if (MASK == 1) {
                            if (!((const u8 *)mask)[at]) score = hidden;
                        } else {
                            // The lowest finite numbers stay finite: a row of nothing else has equal weights.
                            const float add = widened(((const u16 *)mask)[at]), more = add * LOG2_E;
                            score = add == hidden ? hidden : score + (more < LOWEST ? LOWEST : more);
                        }
                    }
                    if (edge) {
                        bool seen = column < keys;
                        if (CAUSAL) seen = seen && column <= row + shift;
                        if (CAUSAL && WINDOW) seen = seen && column > row + shift - window;
                        if (!seen) score = hidden;
                    }
                    scores[r][tile][i] = score;
                    highest[i / 2] = fmaxf(highest[i / 2], score);
                }
            // Where nothing has been seen yet, weights are relative to zero: they are all zero.
            float base[2], shrink[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                highest[half] = fmaxf(highest[half], __shfl_xor_sync(~0u, highest[half], 1));
                highest[half] = fmaxf(highest[half], __shfl_xor_sync(~0u, highest[half], 2));
                base[half] = highest[half] == hidden ? 0.0f : highest[half];
                shrink[half] = power_of_two(greatest[r][half] - base[half]);
                greatest[r][half] = highest[half];
                sums[r][half] *= shrink[half];
            }
#pragma unroll
            for (int tile = 0; tile < WIDE / 8; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) results[r][tile][i] *= shrink[i / 2];
#pragma unroll
            for (int tile = 0; tile < KEYS / 8; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[r][tile][i] = power_of_two(scores[r][tile][i] - base[i / 2]);
                    sums[r][i / 2] += scores[r][tile][i];
                }
        }

#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            u32 weights[ROWS][4];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const float(&pair)[4] = scores[r][step * 2 + part / 2];
                    weights[r][part] = rounded(pair[part % 2 * 2], pair[part % 2 * 2 + 1]);
                }
#pragma unroll
            for (int pair = 0; pair < WIDE / 16; pair++) {
                u32 b[4];
                matrices_transposed(b, in_shared(value_tile + (step * 16 + lane / 8 % 2 * 8 + lane % 8) * VALUE_ROW +
                                                 pair * 16 + lane / 16 * 8));
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    multiply(results[r][pair * 2], weights[r], b[0], b[1]);
                    multiply(results[r][pair * 2 + 1], weights[r], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = sums[r][half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const float inverse = keys == 0 ? 0.0f : 1.0f / sum;
            const i64 row = first_row + r * 16 + half * 8;
            if (row >= queries) continue;
#pragma unroll
            for (int tile = 0; tile < WIDE / 8; tile++) {
                const int column = tile * 8 + lane % 4 * 2;
                const float *const pair = results[r][tile] + half * 2;
                if (column < WIDTH)
                    *(u32 *)(out + row * out_row + column) = rounded(pair[0] * inverse, pair[1] * inverse);
            }
        }
}
