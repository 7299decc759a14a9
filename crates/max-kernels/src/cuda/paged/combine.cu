// Combines what blocks have found in parts of the keys: a block has a token and a head, a warp every fourth part, and a lane two
// columns at a time. Parts without a weight were not written. Everything is added in the order of the parts.

extern "C" __global__ void __launch_bounds__(128) NAME(
    const float *parts, const float2 *weights, OUT *out, long long heads, long long splits, long long out_head,
    long long out_token, long long out_step) {
    constexpr int WARPS = 4, COLUMNS = (DEPTH + 63) / 64;
    __shared__ float2 sums[WARPS][COLUMNS * 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long token = blockIdx.x, head = blockIdx.y, first = (token * heads + head) * splits;
    float highest = -__int_as_float(0x7f800000);
    for (int at = lane; at < splits; at += 32) highest = fmaxf(highest, weights[first + at].x);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    float total = 0.0f;
    float2 found[COLUMNS] = {};
    for (int base = 0; base < splits; base += 32) {
        const float2 own = base + lane < splits ? weights[first + base + lane] : make_float2(0.0f, 0.0f);
        const float share = own.y == 0.0f ? 0.0f : exp2f(own.x - highest);
        float sum = share * own.y;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        total += sum;
#pragma unroll
        for (int at = 0; at < 32; at += WARPS) {
            const float factor = __shfl_sync(~0u, share, at + warp);
            const float *const from = parts + (first + base + at + warp) * DEPTH;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const int column = i * 64 + lane * 2;
                const bool there = factor != 0.0f && column < DEPTH;
                const float2 pair = there ? *(const float2 *)(from + column) : make_float2(0.0f, 0.0f);
                found[i].x = fmaf(factor, pair.x, found[i].x);
                found[i].y = fmaf(factor, pair.y, found[i].y);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sums[warp][i * 32 + lane] = found[i];
    __syncthreads();
    for (int pair = threadIdx.x; pair < DEPTH / 2; pair += 128) {
        float2 sum = sums[0][pair];
#pragma unroll
        for (int other = 1; other < WARPS; other++) {
            sum.x += sums[other][pair].x;
            sum.y += sums[other][pair].y;
        }
        OUT *const to = out + head * out_head + token * out_token + pair * 2 * out_step;
        to[0] = OUT_OF(sum.x / total);
        to[out_step] = OUT_OF(sum.y / total);
    }
}
