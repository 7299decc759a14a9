// Attention of 16-bit floats in one pass over the keys, by warpgroups (sm_90a).
//
// One warpgroup copies: queries, then keys and values in turn, to a ring of slots in shared memory. Each of the others has 64
// rows of queries. Scores, weights and results stay in registers; weights are relative to the greatest score so far, and sums
// are rescaled when that grows. While the weights of a tile of keys are computed, the products of the tile before with its values
// are on their way. A block takes one item of work after the other, and its copies run ahead into the next one.
//
// This text is preceded by definitions of NAME, DEPTH, WIDTH (multiples of 8), HALF, MASK (0 none, 1 bool, 2 added), CAUSAL, WINDOW,
// SOFTCAP, SPLIT, KEYS (of a tile, a multiple of 64), GROUPS (warpgroups with rows, one or two), SLOTS, BLOCKS (of a multiprocessor) and
// WHOLE_PIECES (whether queries are copied 16 bytes at a time, else QUERY is their type), by the functions scores_product and
// results_product, and by Work, which knows where operands are.

constexpr int DEEP = (DEPTH + 15) / 16 * 16, THREADS = 128 * (GROUPS + 1);
constexpr int WIDE_PANELS = (WIDTH + PANEL - 1) / PANEL, DEEP_PANELS = (DEPTH + PANEL - 1) / PANEL;
constexpr int SLOT = KEYS * PANEL_ROW * (WIDE_PANELS > DEEP_PANELS ? WIDE_PANELS : DEEP_PANELS);
constexpr int QUERIES = ROWS * PANEL_ROW * DEEP_PANELS;

// The next slot of the ring, and how often it was passed.
struct Ring {
    u32 slot = 0, parity = 0;

    __device__ __forceinline__ void next() {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/// Copies the rows of queries, each warp sixteen at a time, of which each lane looks up one, and arrives.
template <class Row> __device__ __forceinline__ void copy_queries(u32 to, u32 barrier, i64 step, Row row_at) {
    constexpr int PIECES = DEEP / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int first = warp * 16; first < ROWS; first += 64) {
        const QUERY *const own = row_at(first + lane % 16);
#pragma unroll 4
        for (int i = lane; i < 16 * PIECES; i += 32) {
            const int piece = i % PIECES, row = i / PIECES;
            const QUERY *const from = (const QUERY *)__shfl_sync(~0u, (u64)own, row) + piece * 8 * step;
            const bool there = __shfl_sync(~0u, own != 0, row) && piece * 8 < DEPTH;
            const u32 place = to + piece_at(first + row, piece, ROWS);
#if WHOLE_PIECES
            fetch(place, there ? from : 0, there);
#else
            u32 pairs[4] = {};
#pragma unroll
            for (int pair = 0; pair < 4; pair++)
                if (there) pairs[pair] = rounded(SUM_OF_QUERY(from[pair * 2 * step]), SUM_OF_QUERY(from[(pair * 2 + 1) * step]));
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]),
                         "r"(pairs[3])
                         : "memory");
#endif
        }
    }
#if WHOLE_PIECES
    barrier_arrive_with_copies(barrier);
#else
    copies_seen();
    barrier_arrive(barrier);
#endif
}

/// Copies the rows of a tile of keys or values, each warp sixteen at a time, which are equally far apart. There are `left` rows;
/// more are zeros, and so are those without a place.
template <int COLUMNS> __device__ __forceinline__ void copy_tile(u32 to, const u16 *const (&places)[KEYS / 64], i64 step, int left) {
    constexpr int PIECES = (COLUMNS + 15) / 16 * 2, AT_ONCE = 32 % PIECES ? 1 : 32 / PIECES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const i64 own = lane / PIECES * step + lane % PIECES * 8;
#pragma unroll
    for (int group = 0; group < KEYS / 64; group++) {
        const int first = group * 64 + warp * 16;
        const u16 *from = places[group] + own;
#pragma unroll (32 % PIECES ? 4 : PIECES / 2)
        for (int i = 0; i < PIECES / 2; i++) {
            const int piece = (i * 32 + lane) % PIECES, row = (i * 32 + lane) / PIECES;
            if (32 % PIECES) from = places[group] + row * step + piece * 8;
            const bool there = places[group] && first + row < left && piece * 8 < COLUMNS;
            fetch(to + piece_at(first + row, piece, KEYS), there ? from : 0, there);
            from += AT_ONCE * step;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(PARAMETERS) {
    extern __shared__ __align__(1024) u8 shared[];
    const Work work = GIVEN;
    const u32 queries_at = in_shared(shared), ring_at = queries_at + QUERIES, barriers = ring_at + SLOTS * SLOT;
    const u32 queries_full = barriers, queries_free = barriers + 8;
    const auto full = [&](u32 slot) { return barriers + 16 + slot * 16; };
    const auto free = [&](u32 slot) { return barriers + 24 + slot * 16; };
    if (threadIdx.x == 0) {
        barrier_begin(queries_full, 128);
        barrier_begin(queries_free, GROUPS * 4);
        for (int slot = 0; slot < SLOTS; slot++) {
            barrier_begin(full(slot), 128);
            barrier_begin(free(slot), GROUPS * 4);
        }
    }
    __syncthreads();

    Ring ring;
    u32 queries_parity = 0;
    if (threadIdx.x < 128) {
        // A warpgroup that is alone with another one has enough registers.
        if (GROUPS > 1 || BLOCKS > 1) give_registers<56>();
        for (i64 turn = 0;; turn++) {
            const Tile tile = work.tile(turn);
            if (tile.after_last) break;
            const int count = tile.tiles();
            if (count == 0) continue;
            barrier_wait(queries_free, queries_parity ^ 1);
            copy_queries(queries_at, queries_full, work.query_column(), [&](int row) { return work.query_row(tile, row); });
            queries_parity ^= 1;
            // The first two tiles of keys, then values and keys in turn.
#pragma unroll 1
            for (int i = 0; i < 2 * count; i++) {
                const bool is_value = i > 0 && (i % 2 == 0 || i + 1 == 2 * count);
                const int first = tile.first_key + (is_value ? (i - 1) / 2 : (i + 1) / 2) * KEYS;
                const u16 *places[KEYS / 64];
#pragma unroll
                for (int group = 0; group < KEYS / 64; group++)
                    places[group] = work.place(tile, first + group * 64 + threadIdx.x / 32 * 16, is_value);
                const u32 to = ring_at + ring.slot * SLOT;
                barrier_wait(free(ring.slot), ring.parity ^ 1);
                if (DEPTH == WIDTH || !is_value) {
                    copy_tile<DEPTH>(to, places, work.step(is_value), tile.end_key - first);
                } else {
                    copy_tile<WIDTH>(to, places, work.step(is_value), tile.end_key - first);
                }
                barrier_arrive_with_copies(full(ring.slot));
                ring.next();
            }
        }
    } else {
        if (GROUPS > 1 || BLOCKS > 1) take_registers<GROUPS == 2 ? 224 : 200>();
        const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
        const int own_row = threadIdx.x / 32 % 4 * 16 + group * 64 + lane / 4;
        const u64 query_tile = described(queries_at + group * 64 * PANEL_ROW, ROWS);
        const u64 ring_tile = described(ring_at, KEYS);
        const float hidden = -__int_as_float(0x7f800000);
        const float factor = MASK || SOFTCAP ? 1.0f : (float)work.scale * LOG2_E;
        const auto arrive = [&](u32 barrier) {
            __syncwarp();
            if (lane == 0) barrier_arrive(barrier);
        };
        const auto wait = [&](u32 barrier, u32 parity) {
            barrier_wait(barrier, parity);
            copies_seen();
        };

        for (i64 turn = 0;; turn++) {
            const Tile tile = work.tile(turn);
            if (tile.after_last) break;
            const int count = tile.tiles();
            int positions[2];
#pragma unroll
            for (int half = 0; half < 2; half++) positions[half] = work.position(tile, own_row + half * 8);
            const int first_position = work.position(tile, group * 64), last_position = work.position(tile, group * 64 + 63);
            float greatest[2] = {hidden, hidden}, sums[2] = {0.0f, 0.0f}, results[WIDTH / 2], scores[KEYS / 2];
            u32 weights[KEYS / 4];
#pragma unroll
            for (int i = 0; i < WIDTH / 2; i++) results[i] = 0.0f;

            const auto score = [&]() {
                const u64 keys = ring_tile + (ring.slot * SLOT >> 4);
#pragma unroll
                for (int step = 0; step < DEEP / 16; step++) {
                    const int panel = step / 4, within = step % 4 * 2;
                    scores_product(scores, query_tile + (panel * ROWS * PANEL_ROW >> 4) + within,
                                   keys + (panel * KEYS * PANEL_ROW >> 4) + within, step > 0);
                }
            };
            const auto add = [&](u32 slot) {
                const u64 values = ring_tile + (slot * SLOT >> 4);
#pragma unroll
                for (int step = 0; step < KEYS / 16; step++)
                    results_product(results, weights[step * 4], weights[step * 4 + 1], weights[step * 4 + 2],
                                    weights[step * 4 + 3], values + (step * 16 * PANEL_ROW >> 4));
            };
            // Turns scores into weights that are not rounded yet; returns by how much what was found before shrinks.
            const auto weigh = [&](int at, float(&shrink)[2]) {
                const int from = tile.first_key + at * KEYS;
                if (MASK || SOFTCAP) {
#pragma unroll
                    for (int i = 0; i < KEYS / 2; i++) {
#if SOFTCAP
                        // The hyperbolic tangent, by a power of two.
                        const float cap = (float)work.softcap, raised = 2.0f * LOG2_E * (float)work.scale / cap;
                        const float power = power_of_two(scores[i] * raised);
                        scores[i] = cap * LOG2_E * (1.0f - __fdividef(2.0f, power + 1.0f));
#else
                        scores[i] *= (float)work.scale * LOG2_E;
#endif
#if MASK
                        const int row = own_row + i / 2 % 2 * 8, column = from + i / 4 * 8 + lane % 4 * 2 + i % 2;
                        if (work.is_masked(tile, row, column)) scores[i] = work.masked(tile, row, column, scores[i]);
#endif
                    }
                }
                const bool edge = from + KEYS > tile.end_key || CAUSAL && from + KEYS - 1 > first_position ||
                                  CAUSAL && WINDOW && from <= last_position - work.window;
                if (edge) {
#pragma unroll
                    for (int i = 0; i < KEYS / 2; i++) {
                        const int column = from + i / 4 * 8 + lane % 4 * 2 + i % 2, position = positions[i / 2 % 2];
                        bool seen = column < tile.end_key;
                        if (CAUSAL) seen = seen && column <= position;
                        if (CAUSAL && WINDOW) seen = seen && column > position - work.window;
                        if (!seen) scores[i] = hidden;
                    }
                }
                float highest[2] = {greatest[0], greatest[1]}, base[2];
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], scores[i]);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    highest[half] = fmaxf(highest[half], __shfl_xor_sync(~0u, highest[half], 1));
                    highest[half] = fmaxf(highest[half], __shfl_xor_sync(~0u, highest[half], 2));
                    // Where nothing has been seen yet, weights are relative to zero: they are all zero.
                    base[half] = highest[half] == hidden ? 0.0f : highest[half] * factor;
                    shrink[half] = power_of_two(fmaf(greatest[half], factor, -base[half]));
                    greatest[half] = highest[half];
                    sums[half] *= shrink[half];
                }
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++) {
                    scores[i] = power_of_two(fmaf(scores[i], factor, -base[i / 2 % 2]));
                    sums[i / 2 % 2] += scores[i];
                }
            };
            const auto round = [&]() {
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) weights[i] = rounded(scores[i * 2], scores[i * 2 + 1]);
            };

            if (count > 0) {
                float shrink[2];
                wait(queries_full, queries_parity);
                queries_parity ^= 1;
                wait(full(ring.slot), ring.parity);
                products_begin();
                score();
                products_end();
                products_finished<0>();
                hold(scores);
                arrive(free(ring.slot));
                ring.next();
                weigh(0, shrink);
                round();
                for (int at = 1; at < count; at++) {
                    const Ring keys = ring;
                    wait(full(ring.slot), ring.parity);
                    hold(scores);
                    products_begin();
                    score();
                    products_end();
                    ring.next();
                    wait(full(ring.slot), ring.parity);
                    hold(results);
                    hold(weights);
                    products_begin();
                    add(ring.slot);
                    products_end();
                    products_finished<1>();
                    hold(scores);
                    arrive(free(keys.slot));
                    weigh(at, shrink);
                    products_finished<0>();
                    hold(results);
                    hold(weights);
                    arrive(free(ring.slot));
                    ring.next();
#pragma unroll
                    for (int i = 0; i < WIDTH / 2; i++) results[i] *= shrink[i / 2 % 2];
                    round();
                }
                arrive(queries_free);
                wait(full(ring.slot), ring.parity);
                hold(results);
                hold(weights);
                products_begin();
                add(ring.slot);
                products_end();
                products_finished<0>();
                hold(results);
                arrive(free(ring.slot));
                ring.next();
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                sums[half] += __shfl_xor_sync(~0u, sums[half], 1);
                sums[half] += __shfl_xor_sync(~0u, sums[half], 2);
                work.store(tile, own_row + half * 8, lane % 4 * 2, greatest[half] * factor, sums[half], results, half);
            }
        }
    }
}
