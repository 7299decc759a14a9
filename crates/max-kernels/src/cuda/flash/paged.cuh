// The operands of attention to a cache in pages. The rows of a tile are the tokens of a sequence, each with all heads that share
// keys: token by token, and head by head. Without SPLIT an item has all keys that its rows see; the last tokens of a sequence
// come first, since they see the most. With SPLIT it has a part of the keys of a sequence, for all rows of the sequence, and what
// is found there is combined by another function (combine.cu). Strides are in elements. Pages have a multiple of 16 tokens. With
// PAIRS two elements are stored at a time.

#define PARAMETERS \
    const QUERY *query, const u16 *cache, OUT *out, float2 *weights, TABLES, i64 heads, i64 shared_heads, double scale, \
        i64 window, double softcap, i64 splits, i64 query_head, i64 query_token, i64 query_step, i64 out_head, i64 out_token, \
        i64 out_step, i64 cache_page, i64 cache_part, i64 cache_layer, i64 cache_token, i64 cache_head

#define GIVEN \
    Work { \
        query, cache, out, weights, GIVEN_TABLES, heads, shared_heads, scale, (int)min(window, 1ll << 30), softcap, splits, query_head, \
            query_token, query_step, out_head, out_token, out_step, cache_page, cache_part, cache_layer, cache_token, cache_head \
    }

struct Tile {
    bool after_last;
    int first_row, rows, first_key, end_key, cached;
    i64 sequence, first_token, head, split;
    const u16 *cache;

    __device__ __forceinline__ int tiles() const { return (end_key - first_key + KEYS - 1) / KEYS; }
};

struct Work {
    const QUERY *query;
    const u16 *cache;
    OUT *out;
    float2 *weights;
    Tables tables;
    i64 heads, shared_heads;
    double scale;
    int window;
    double softcap;
    i64 splits, query_head, query_token, query_step, out_head, out_token, out_step;
    i64 cache_page, cache_part, cache_layer, cache_token, cache_head;

    __device__ __forceinline__ Tile tile(i64 turn) const {
        const u32 key_heads = (u32)heads / (u32)shared_heads;
        Tile tile = {};
#if SPLIT
        const u32 key_head = blockIdx.x % key_heads, rest = blockIdx.x / key_heads;
        i64 first_row = turn * ROWS;
        tile.split = rest % (u32)splits;
        tile.sequence = rest / (u32)splits;
        const Sequence own = tables.sequence(tile.sequence);
#else
        const u32 item = (u32)turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        const u32 key_head = item % key_heads;
        i64 first_row = 0;
        const Sequence own = find(item / key_heads, tile.sequence, first_row);
#endif
        const i64 layer = tables.layer();
        const i64 rows = own.count * shared_heads, all_keys = own.cached + own.count;
        tile.after_last = first_row >= rows || layer < 0;
        if (tile.after_last) return tile;
        tile.first_row = (int)first_row;
        tile.rows = (int)rows;
        tile.cached = (int)own.cached;
        tile.first_token = own.first;
        tile.head = key_head * shared_heads;
        tile.cache = cache + layer * cache_layer + key_head * cache_head;
        tile.end_key = (int)all_keys;
#if SPLIT
        if (WINDOW && own.cached + 1 > window) tile.first_key = (int)(own.cached + 1 - window) / KEYS * KEYS;
        const i64 part = (((u32)(all_keys - tile.first_key) + (u32)splits - 1) / (u32)splits + KEYS - 1) / KEYS * KEYS;
        const i64 first_key = tile.first_key + tile.split * part;
        tile.end_key = (int)min(all_keys, first_key + part);
        tile.first_key = (int)min(first_key, (i64)tile.end_key);
#else
        if (CAUSAL) {
            const int first = position(tile, 0);
            tile.end_key = min(tile.end_key, position(tile, ROWS - 1) + 1);
            if (WINDOW && first + 1 > window) tile.first_key = (first + 1 - window) / KEYS * KEYS;
        }
#endif
        return tile;
    }

    /// The sequence that has a tile, and where in it the tile starts; one without tokens if there are fewer tiles. Each lane looks
    /// at a sequence.
    __device__ Sequence find(i64 tile, i64 &number, i64 &first_row) const {
        const int lane = threadIdx.x % 32;
        for (i64 base = 0; base < tables.sequences; base += 32) {
            const Sequence own = base + lane < tables.sequences ? tables.sequence(base + lane) : Sequence{0, 0, 0};
            const int here = (int)((own.count * shared_heads + ROWS - 1) / ROWS);
            int upto = here;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int before = __shfl_up_sync(~0u, upto, step);
                if (lane >= step) upto += before;
            }
            const u32 after = __ballot_sync(~0u, upto > tile);
            if (after) {
                const int found = __ffs(after) - 1;
                number = base + found;
                first_row = (__shfl_sync(~0u, upto, found) - 1 - tile) * ROWS;
                return {__shfl_sync(~0u, own.first, found), __shfl_sync(~0u, own.count, found),
                        __shfl_sync(~0u, own.cached, found)};
            }
            tile -= __shfl_sync(~0u, upto, 31);
        }
        first_row = 0;
        return {0, 0, 0};
    }

    __device__ __forceinline__ int position(const Tile &tile, int row) const {
        return tile.cached + (int)((u32)(tile.first_row + row) / (u32)shared_heads);
    }

    __device__ __forceinline__ const QUERY *query_row(const Tile &tile, int row) const {
        const u32 at = tile.first_row + row, token = at / (u32)shared_heads, head = at % (u32)shared_heads;
        return at < tile.rows ? query + (tile.head + head) * query_head + (tile.first_token + token) * query_token : 0;
    }

    __device__ __forceinline__ i64 query_column() const { return query_step; }

    /// Where the key or value of a position is, and how far it is to the next one of its page. A page that is not in the cache is
    /// reported, and has no place.
    __device__ __forceinline__ const u16 *place(const Tile &tile, int position, bool is_value) const {
        if (position >= tile.end_key) return 0;
        const int shift = (int)tables.page_shift, size = (int)tables.page;
        const int number = shift >= 0 ? position >> shift : position / size;
        const i64 page = tables.page_of(tile.sequence, number);
        return page < 0 ? 0 : tile.cache + page * cache_page + (position - number * size) * cache_token + (is_value ? cache_part : 0);
    }
    __device__ __forceinline__ i64 step(bool) const { return cache_token; }

    template <int N>
    __device__ __forceinline__ void store(const Tile &tile, int row, int column, float greatest, float sum,
                                          const float (&results)[N], int half) const {
        const u32 at = tile.first_row + row, head = tile.head + at % (u32)shared_heads;
        const i64 token = tile.first_token + at / (u32)shared_heads;
        if (at >= tile.rows) return;
#if SPLIT
        const i64 place = (token * heads + head) * splits + tile.split;
        // A part without keys has no weight.
        if (column == 0) weights[place] = make_float2(greatest, sum);
        if (sum == 0.0f) return;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            *(float2 *)(out + place * DEPTH + column + i * 8) = make_float2(results[i * 4 + half * 2], results[i * 4 + half * 2 + 1]);
#else
        const float inverse = 1.0f / sum;
        OUT *const to = out + head * out_head + token * out_token + column * out_step;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const OUT first = OUT_OF(results[i * 4 + half * 2] * inverse), second = OUT_OF(results[i * 4 + half * 2 + 1] * inverse);
#if PAIRS
            struct __align__(2 * sizeof(OUT)) Pair { OUT first, second; };
            *(Pair *)(to + i * 8) = {first, second};
#else
            to[i * 8 * out_step] = first;
            to[(i * 8 + 1) * out_step] = second;
#endif
        }
#endif
    }
};
