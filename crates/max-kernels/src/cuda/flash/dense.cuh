// The operands of attention of a graph: there are four batch axes; strides are in elements. The entries of the batch are
// taken in sections, whose keys and values fit the cache of the GPU. In a section the last rows come first: with causal
// attention they see the most keys.

typedef u16 QUERY;

#define PARAMETERS \
    const u16 *query, const u16 *key, const u16 *value, const void *mask, u16 *out, i64 queries, i64 keys, i64 tiles, \
        double scale, i64 shift, i64 window, i64 size1, i64 size2, i64 size3, \
        i64 query0, i64 query1, i64 query2, i64 query3, i64 query_step, i64 key0, i64 key1, i64 key2, i64 key3, i64 key_step, \
        i64 value0, i64 value1, i64 value2, i64 value3, i64 value_step, i64 mask0, i64 mask1, i64 mask2, i64 mask3, \
        i64 mask_step, i64 mask_column, i64 out0, i64 out1, i64 out2, i64 out3, i64 out_step, i64 entries, i64 section

#define GIVEN \
    Work { \
        query, key, value, mask, out, queries, keys, tiles, scale, shift, (int)min(window, 1ll << 30), size1, size2, size3, \
            query0, query1, query2, query3, query_step, key0, key1, key2, key3, key_step, value0, value1, value2, value3, \
            value_step, mask0, mask1, mask2, mask3, mask_step, mask_column, out0, out1, out2, out3, out_step, entries, section \
    }

struct Tile {
    bool after_last;
    int first_row, first_key, end_key;
    const u16 *query, *key, *value;
    u16 *out;
    i64 mask;

    __device__ __forceinline__ int tiles() const { return (end_key - first_key + KEYS - 1) / KEYS; }
};

struct Work {
    const u16 *query, *key, *value;
    const void *mask;
    u16 *out;
    i64 queries, keys, all_tiles;
    double scale;
    i64 shift;
    int window;
    i64 size1, size2, size3;
    i64 query0, query1, query2, query3, query_step, key0, key1, key2, key3, key_step;
    i64 value0, value1, value2, value3, value_step, mask0, mask1, mask2, mask3, mask_step, mask_column;
    i64 out0, out1, out2, out3, out_step, entries, section;

    __device__ __forceinline__ Tile tile(i64 turn) const {
        Tile tile = {};
        // Every second turn goes backwards, so that blocks get equal shares. Where items differ, sections start with a turn.
        const u32 item = turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        u32 whole = (u32)(section * all_tiles);
        if (CAUSAL) whole = (whole + gridDim.x - 1) / gridDim.x * gridDim.x;
        const u32 before = item / whole * (u32)section, rest = item % whole;
        tile.after_last = before >= (u32)entries;
        const u32 here = tile.after_last ? 1 : min((u32)section, (u32)entries - before);
        // Behind the last row there are no keys.
        tile.first_row = (int)queries;
        if (tile.after_last || rest >= here * (u32)all_tiles) return tile;
        const u32 number = CAUSAL ? (u32)all_tiles - 1 - rest / here : rest / here;
        u32 entry = before + rest % here;
        const u32 at3 = entry % (u32)size3;
        entry /= (u32)size3;
        const u32 at2 = entry % (u32)size2;
        entry /= (u32)size2;
        const u32 at1 = entry % (u32)size1, at0 = entry / (u32)size1;
        tile.query = query + at0 * query0 + at1 * query1 + at2 * query2 + at3 * query3;
        tile.key = key + at0 * key0 + at1 * key1 + at2 * key2 + at3 * key3;
        tile.value = value + at0 * value0 + at1 * value1 + at2 * value2 + at3 * value3;
        tile.out = out + at0 * out0 + at1 * out1 + at2 * out2 + at3 * out3;
        tile.mask = at0 * mask0 + at1 * mask1 + at2 * mask2 + at3 * mask3;
        tile.first_row = (int)number * 64 * GROUPS;
        tile.first_key = 0;
        tile.end_key = (int)keys;
        if (CAUSAL) {
            const int first = tile.first_row + (int)shift;
            tile.end_key = max(0, min((int)keys, first + 64 * GROUPS));
            if (WINDOW) tile.first_key = max(0, first - window + 1) / KEYS * KEYS;
        }
        return tile;
    }

    __device__ __forceinline__ int position(const Tile &tile, int row) const { return tile.first_row + row + (int)shift; }

    __device__ __forceinline__ const u16 *query_row(const Tile &tile, int row) const {
        return tile.first_row + row < queries ? tile.query + (tile.first_row + row) * query_step : 0;
    }

    __device__ __forceinline__ i64 query_column() const { return 1; }

    /// Where the key or value of a position is, and how far it is to the next one.
    __device__ __forceinline__ const u16 *place(const Tile &tile, int position, bool is_value) const {
        return is_value ? tile.value + position * value_step : tile.key + position * key_step;
    }
    __device__ __forceinline__ i64 step(bool is_value) const { return is_value ? value_step : key_step; }

    __device__ __forceinline__ bool is_masked(const Tile &tile, int row, int column) const {
        return tile.first_row + row < queries && column < tile.end_key;
    }

    /// A score, in powers of two, with the mask.
    __device__ __forceinline__ float masked(const Tile &tile, int row, int column, float score) const {
        const float hidden = -__int_as_float(0x7f800000);
        const i64 at = tile.mask + (tile.first_row + row) * mask_step + column * mask_column;
        if (MASK == 1) return ((const u8 *)mask)[at] ? score : hidden;
        // The lowest finite numbers stay finite: a row of nothing else has equal weights.
        const float add = widened(((const u16 *)mask)[at]), more = add * LOG2_E;
        return add == hidden ? hidden : score + (more < LOWEST ? LOWEST : more);
    }

    template <int N>
    __device__ __forceinline__ void store(const Tile &tile, int row, int column, float, float sum, const float (&results)[N],
                                          int half) const {
        if (tile.first_row + row >= queries) return;
        const float inverse = 1.0f / sum;
        u16 *const to = tile.out + (tile.first_row + row) * out_step + column;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            *(u32 *)(to + i * 8) = rounded(results[i * 4 + half * 2] * inverse, results[i * 4 + half * 2 + 1] * inverse);
    }
};
