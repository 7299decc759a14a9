// Stores rows of floats in pages of a cache, a warp each: as floats, or as blocks of Q8_0 if ENCODED. The grid has a row for each
// part of the cache, and there are one or two.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const SOURCE *source_0, IN *cache_0, long long token_0, long long head_0, long long step_0, const SOURCE *source_1,
    IN *cache_1, long long token_1, long long head_1, long long step_1, TABLES, long long heads, long long cache_page,
    long long cache_layer, long long cache_token, long long cache_head) {
    const bool other = blockIdx.y == 1;
    const SOURCE *const source = other ? source_1 : source_0;
    IN *const cache = other ? cache_1 : cache_0;
    const long long source_token = other ? token_1 : token_0, source_head = other ? head_1 : head_0;
    const long long source_step = other ? step_1 : step_0;
    const Tables tables = GIVEN_TABLES;
    const int lane = threadIdx.x % 32;
    const long long rows = tokens * heads, step = gridDim.x * 8ll;
    const long long layer = tables.layer();
    if (layer < 0) return;
    for (long long row = blockIdx.x * 8ll + threadIdx.x / 32; row < rows; row += step) {
        const long long token = row / heads, head = row - token * heads;
        const long long number = tables.sequence_of(token);
        const Sequence own = tables.sequence(number);
        if (token < own.first || token >= own.first + own.count) continue;
        const long long position = own.cached + token - own.first, at = tables.number_of(position);
        const long long page_number = tables.page_of(number, at);
        if (page_number < 0) continue;
        const SOURCE *const from = source + token * source_token + head * source_head;
        IN *const to = cache + page_number * cache_page + layer * cache_layer + (position - at * page) * cache_token +
                       head * cache_head;
#if ENCODED
        for (int block = 0; block < DEPTH / 32; block++) {
            const float value = SUM_OF_SOURCE(from[(block * 32 + lane) * source_step]);
            float largest = fabsf(value);
            for (int apart = 16; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
            const float scale = largest / 127.0f, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
            IN *const bytes = to + block * 34;
            // Subnormal scales have no inverse; all of their codes are zero. The product is rounded before it is rounded to a code.
            const float steps = __fmul_rn(value, inverse);
            bytes[2 + lane] = fabsf(steps) < 128.0f ? (unsigned char)(signed char)(int)roundf(steps) : 0;
            if (lane == 0) {
                const unsigned short half = to_f16(scale);
                bytes[0] = (unsigned char)half;
                bytes[1] = (unsigned char)(half >> 8);
            }
        }
#else
        for (int column = lane; column < DEPTH; column += 32) {
            to[column] = IN_OF(SUM_OF_SOURCE(from[column * source_step]));
        }
#endif
    }
}
