// Attention to a cache of 16-bit floats in pages, in one pass over the keys, on tensor cores.
//
// Four warps walk the keys 64 at a time, which are staged through shared memory, the next tile while the current one is used.
// Scores, weights and results stay in registers; weights are relative to the greatest score so far, and sums are rescaled
// when that grows. There are two ways to divide the work:
// - Without SPLIT a block has 64 tokens of a sequence and a head, each warp 16 of them.
// - With SPLIT, which is for few tokens of long sequences, a block has a part of the keys of a sequence for all heads that share
//   them: 16 rows of tokens and heads at a time, of which each warp has a fourth of the keys of a tile. What the warps have
//   found is combined here, and what blocks have found by another function (combine.cu).
//
// This text is preceded by definitions of NAME, QUERY, IN (the cache), OUT, DEPTH (a multiple of 8), HALF, CAUSAL, WINDOW, SOFTCAP and
// SPLIT.

constexpr int KEYS = 64, DEEP = (DEPTH + 15) / 16 * 16, ROW = DEEP + 8;
// The keys that a warp has of a tile.
constexpr int OWN = SPLIT ? 16 : KEYS;
constexpr float HIDDEN = -3.4e38f;

struct Rows {
    float greatest[2], sums[2], results[DEEP / 8][4];
};

extern "C" __global__ void __launch_bounds__(128) NAME(
    const QUERY *query, const u16 *cache, OUT *out, float2 *weights, TABLES, i64 heads, i64 shared_heads, double scale, i64 window,
    double softcap, i64 splits, i64 query_head, i64 query_token, i64 query_step, i64 out_head, i64 out_token, i64 out_step,
    i64 cache_page, i64 cache_part, i64 cache_layer, i64 cache_token, i64 cache_head) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *const key_tiles = shared, *const value_tiles = shared + 2 * KEYS * ROW;
    int *const page_numbers = (int *)(shared + 4 * KEYS * ROW);
    const Tables tables = GIVEN_TABLES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Which rows and which keys this block has.
#if SPLIT
    const i64 number = blockIdx.z, key_head = blockIdx.y;
    const Sequence own = tables.sequence(number);
    const i64 rows = own.count * shared_heads;
#else
    i64 number = 0, tile = blockIdx.x;
    Sequence own = {0, 0, 0};
    for (; number < sequences; number++) {
        own = tables.sequence(number);
        const i64 here = (own.count + 63) / 64;
        // The last tokens see the most keys, so they go first.
        if (tile < here) {
            tile = here - 1 - tile;
            break;
        }
        tile -= here;
    }
    if (number == sequences) return;
    const i64 head = blockIdx.y, key_head = head / shared_heads, rows = own.count;
#endif
    const i64 layer = tables.layer();
    if (own.count == 0 || layer < 0) return;
    const i64 all_keys = own.cached + own.count;
#if SPLIT
    i64 first_key = 0;
    if (WINDOW && own.cached + 1 > window) first_key = (own.cached + 1 - window) / KEYS * KEYS;
    const i64 part = ((all_keys - first_key + splits - 1) / splits + KEYS - 1) / KEYS * KEYS;
    first_key += blockIdx.x * part;
    const i64 end_key = min(all_keys, first_key + part);
    if (first_key >= end_key) {
        // A part without keys has no weight.
        for (i64 row = threadIdx.x; row < rows; row += 128) {
            const i64 token = own.first + row / shared_heads, head = key_head * shared_heads + row % shared_heads;
            weights[(token * heads + head) * splits + blockIdx.x] = make_float2(HIDDEN, 0.0f);
        }
        return;
    }
    const i64 first_pass = 0, passes = (rows + 15) / 16;
#else
    i64 first_key = 0, end_key = all_keys;
    const i64 first_position = own.cached + tile * 64;
    if (CAUSAL) {
        end_key = min(all_keys, first_position + 64);
        if (WINDOW && first_position + 1 > window) first_key = (first_position + 1 - window) / KEYS * KEYS;
    }
    const i64 first_pass = tile * 4 + warp, passes = first_pass + 1;
#endif

    // The pages that have these keys.
    const i64 first_page = tables.number_of(first_key), last_page = tables.number_of(end_key - 1);
    int bad = 0;
    for (i64 at = first_page + threadIdx.x; at <= last_page; at += 128) {
        const i64 found = tables.page_of(number, at);
        page_numbers[at - first_page] = (int)found;
        bad |= found < 0;
    }
    if (__syncthreads_or(bad)) return;
    cache += layer * cache_layer + key_head * cache_head;

    const auto load = [&](i64 from, int stage) {
        u16 *const key_tile = key_tiles + stage * KEYS * ROW, *const value_tile = value_tiles + stage * KEYS * ROW;
#pragma unroll
        for (int i = 0; i < KEYS * DEEP / 8 / 128; i++) {
            const int chunk = i * 128 + threadIdx.x, row = chunk / (DEEP / 8), column = chunk % (DEEP / 8) * 8;
            const i64 position = from + row;
            const bool there = position < end_key && column < DEPTH;
            const i64 at = tables.number_of(there ? position : from);
            const u16 *const place =
                cache + page_numbers[at - first_page] * cache_page + ((there ? position : from) - at * page) * cache_token;
            const u16 *const source = there ? place + column : place;
            fetch(in_shared(key_tile + row * ROW + column), source, there);
            fetch(in_shared(value_tile + row * ROW + column), source + cache_part, there);
        }
        asm volatile("cp.async.commit_group;");
    };
    const float factor = (float)scale * LOG2_E;

    for (i64 pass = first_pass; pass < passes; pass++) {
        // The rows of this lane, and the positions of their tokens.
        i64 positions[2], query_at[2];
        bool there[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const i64 row = pass * 16 + lane / 4 + half * 8;
            there[half] = row < rows;
#if SPLIT
            const i64 token = there[half] ? row / shared_heads : 0, head = key_head * shared_heads + (row - token * shared_heads);
            query_at[half] = there[half] ? head * query_head + (own.first + token) * query_token : 0;
#else
            const i64 token = row;
            query_at[half] = there[half] ? head * query_head + (own.first + token) * query_token : 0;
#endif
            positions[half] = own.cached + token;
        }
        load(first_key, 0);
        u32 queries[DEEP / 16][4];
#pragma unroll
        for (int step = 0; step < DEEP / 16; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column = step * 16 + lane % 4 * 2 + i / 2 * 8;
                const QUERY *const from = query + query_at[i % 2] + column * query_step;
                const bool is = there[i % 2] && column < DEPTH;
                queries[step][i] = is ? rounded(SUM_OF_QUERY(from[0]), SUM_OF_QUERY(from[query_step])) : 0;
            }
        Rows found = {{HIDDEN, HIDDEN}, {0.0f, 0.0f}, {}};

        for (i64 from = first_key; from < end_key; from += KEYS) {
            const int stage = (int)((from - first_key) / KEYS % 2);
            if (from + KEYS < end_key) {
                load(from + KEYS, stage ^ 1);
                fetched<1>();
            } else {
                fetched<0>();
            }
            __syncthreads();
            const int skipped = SPLIT ? warp * OWN : 0;
            const u16 *const key_tile = key_tiles + (stage * KEYS + skipped) * ROW;
            const u16 *const value_tile = value_tiles + (stage * KEYS + skipped) * ROW;
            const i64 first = from + skipped;

            float scores[OWN / 8][4] = {};
#pragma unroll
            for (int step = 0; step < DEEP / 16; step++)
#pragma unroll
                for (int pair = 0; pair < OWN / 16; pair++) {
                    u32 b[4];
                    matrices(b, in_shared(key_tile + (pair * 16 + lane / 16 * 8 + lane % 8) * ROW + step * 16 + lane / 8 % 2 * 8));
                    multiply(scores[pair * 2], queries[step], b[0], b[1]);
                    multiply(scores[pair * 2 + 1], queries[step], b[2], b[3]);
                }

            const bool edge = SPLIT || from + KEYS > end_key || CAUSAL && from + KEYS - 1 > own.cached + pass * 16 ||
                              WINDOW && from <= own.cached + pass * 16 + 15 - window;
            float highest[2] = {found.greatest[0], found.greatest[1]};
#pragma unroll
            for (int tile = 0; tile < OWN / 8; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float score = scores[tile][i] * factor;
                    if (SOFTCAP) {
                        const float cap = (float)softcap;
                        score = cap * LOG2_E * tanhf(scores[tile][i] * (float)scale / cap);
                    }
                    if (edge) {
                        const i64 column = first + tile * 8 + lane % 4 * 2 + i % 2, position = positions[i / 2];
                        bool seen = column < end_key;
                        if (CAUSAL) seen = seen && column <= position;
                        if (WINDOW) seen = seen && column > position - window;
                        if (!seen) score = 2.0f * HIDDEN;
                    }
                    scores[tile][i] = score;
                    highest[i / 2] = fmaxf(highest[i / 2], score);
                }
            float shrink[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                highest[half] = fmaxf(highest[half], __shfl_xor_sync(~0u, highest[half], 1));
                highest[half] = fmaxf(highest[half], __shfl_xor_sync(~0u, highest[half], 2));
                shrink[half] = power_of_two(found.greatest[half] - highest[half]);
                found.greatest[half] = highest[half];
                found.sums[half] *= shrink[half];
            }
#pragma unroll
            for (int tile = 0; tile < DEEP / 8; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) found.results[tile][i] *= shrink[i / 2];
#pragma unroll
            for (int tile = 0; tile < OWN / 8; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[tile][i] = power_of_two(scores[tile][i] - found.greatest[i / 2]);
                    found.sums[i / 2] += scores[tile][i];
                }
#pragma unroll
            for (int step = 0; step < OWN / 16; step++) {
                u32 own_weights[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float(&pair)[4] = scores[step * 2 + i / 2];
                    own_weights[i] = rounded(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
                }
#pragma unroll
                for (int pair = 0; pair < DEEP / 16; pair++) {
                    u32 b[4];
                    matrices_transposed(
                        b, in_shared(value_tile + (step * 16 + lane / 8 % 2 * 8 + lane % 8) * ROW + pair * 16 + lane / 16 * 8));
                    multiply(found.results[pair * 2], own_weights, b[0], b[1]);
                    multiply(found.results[pair * 2 + 1], own_weights, b[2], b[3]);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            found.sums[half] += __shfl_xor_sync(~0u, found.sums[half], 1);
            found.sums[half] += __shfl_xor_sync(~0u, found.sums[half], 2);
        }
#if SPLIT
        // What the warps have found, relative to the greatest score of all of them.
        float *const extremes = (float *)shared, *const totals = extremes + 64, *const parts = totals + 64;
        if (lane % 4 == 0) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                extremes[warp * 16 + lane / 4 + half * 8] = found.greatest[half];
                totals[warp * 16 + lane / 4 + half * 8] = found.sums[half];
            }
        }
#pragma unroll
        for (int tile = 0; tile < DEEP / 8; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i / 2 * 8, column = tile * 8 + lane % 4 * 2 + i % 2;
                parts[(warp * 16 + row) * (DEEP + 1) + column] = found.results[tile][i];
            }
        __syncthreads();
        const int present = rows - pass * 16 < 16 ? (int)(rows - pass * 16) : 16;
        for (int at = threadIdx.x; at < present * DEPTH; at += 128) {
            const int row = at / DEPTH, column = at % DEPTH;
            float highest = extremes[row], total = 0.0f, sum = 0.0f;
            for (int other = 1; other < 4; other++) highest = fmaxf(highest, extremes[other * 16 + row]);
            for (int other = 0; other < 4; other++) {
                const float share = power_of_two(extremes[other * 16 + row] - highest);
                total += share * totals[other * 16 + row];
                sum += share * parts[(other * 16 + row) * (DEEP + 1) + column];
            }
            const i64 index = pass * 16 + row, token = own.first + index / shared_heads;
            const i64 head = key_head * shared_heads + index % shared_heads;
            const i64 place = (token * heads + head) * splits + blockIdx.x;
            out[place * DEPTH + column] = OUT_OF(sum);
            if (column == 0) weights[place] = make_float2(highest, total);
        }
        __syncthreads();
#else
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const i64 row = pass * 16 + lane / 4 + half * 8;
            if (row >= rows) continue;
            const float inverse = 1.0f / found.sums[half];
            OUT *const to = out + head * out_head + (own.first + row) * out_token;
#pragma unroll
            for (int tile = 0; tile < DEEP / 8; tile++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int column = tile * 8 + lane % 4 * 2 + i;
                    if (column < DEPTH) to[column * out_step] = OUT_OF(found.results[tile][half * 2 + i] * inverse);
                }
        }
#endif
    }
}
