// Attention to a cache in pages for any cache: a warp has a query, and a lane every 32nd element of it.

constexpr int EACH = (DEPTH + 31) / 32;

// The elements of this lane in a row of the cache.
__device__ __forceinline__ void read(float (&to)[EACH], const IN *row, int lane) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int column = i * 32 + lane;
#if ENCODED
        const IN *const block = row + i * 34;
        to[i] = from_f16((unsigned short)(block[0] | block[1] << 8)) * (float)(signed char)block[2 + lane];
#else
        to[i] = column < DEPTH ? SUM_OF_IN(row[column]) : 0.0f;
#endif
    }
}

extern "C" __global__ void __launch_bounds__(128) NAME(
    const QUERY *query, const IN *cache, OUT *out, TABLES, long long heads, long long shared, double scale,
    long long causal, long long window, double softcap, long long query_head, long long query_token, long long query_step,
    long long out_head, long long out_token, long long out_step, long long cache_page, long long cache_part,
    long long cache_layer, long long cache_token, long long cache_head) {
    const Tables tables = GIVEN_TABLES;
    const int lane = threadIdx.x % 32;
    const long long layer = tables.layer();
    if (layer < 0) return;
    for (long long row = blockIdx.x * 4ll + threadIdx.x / 32; row < tokens * heads; row += gridDim.x * 4ll) {
        const long long token = row / heads, head = row - token * heads;
        const long long number = tables.sequence_of(token);
        const Sequence own = tables.sequence(number);
        if (token < own.first || token >= own.first + own.count) continue;
        const long long position = own.cached + token - own.first;
        const long long end = causal ? position + 1 : own.cached + own.count;
        const long long first = window > 0 && end > window ? end - window : 0;
        float queries[EACH], sums[EACH] = {}, greatest = -__int_as_float(0x7f800000), total = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int column = i * 32 + lane;
            const QUERY *const from = query + head * query_head + token * query_token + column * query_step;
            queries[i] = column < DEPTH ? SUM_OF_QUERY(*from) : 0.0f;
        }
        long long page_at = -1;
        const IN *keys = cache;
        for (long long key = first; key < end; key++) {
            const long long at = tables.number_of(key);
            if (at != page_at) {
                const long long page_number = tables.page_of(number, at);
                if (page_number < 0) break;
                page_at = at;
                keys = cache + page_number * cache_page + layer * cache_layer + head / shared * cache_head;
            }
            const IN *const place = keys + (key - at * page) * cache_token;
            float values[EACH], score = 0.0f;
            read(values, place, lane);
#pragma unroll
            for (int i = 0; i < EACH; i++) score = fmaf(queries[i], values[i], score);
            for (int apart = 16; apart > 0; apart /= 2) score += __shfl_xor_sync(~0u, score, apart);
            score *= (float)scale;
            if (softcap > 0.0) score = (float)softcap * tanhf(score / (float)softcap);
            const float highest = fmaxf(greatest, score);
            const float shrink = expf(greatest - highest), weight = expf(score - highest);
            greatest = highest;
            total = total * shrink + weight;
            read(values, place + cache_part, lane);
#pragma unroll
            for (int i = 0; i < EACH; i++) sums[i] = fmaf(weight, values[i], sums[i] * shrink);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int column = i * 32 + lane;
            if (column < DEPTH) out[head * out_head + token * out_token + column * out_step] = OUT_OF(sums[i] / total);
        }
    }
}
