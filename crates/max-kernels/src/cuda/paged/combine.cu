// Combines what blocks of tensor.cu have found in parts of the keys: a block has a token and a head, and a thread an element.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const float *parts, const float2 *weights, OUT *out, TABLES, long long heads, long long window, long long splits,
    long long out_head, long long out_token, long long out_step) {
    const Tables tables = GIVEN_TABLES;
    const long long token = blockIdx.x, head = blockIdx.y;
    const Sequence own = tables.sequence(tables.sequence_of(token));
    if (token < own.first || token >= own.first + own.count) return;
    // As many parts as there are in tensor.cu.
    const long long all_keys = own.cached + own.count;
    long long first_key = 0;
    if (window > 0 && own.cached + 1 > window) first_key = (own.cached + 1 - window) / 64 * 64;
    const long long keys = all_keys - first_key, part = ((keys + splits - 1) / splits + 63) / 64 * 64;
    const int count = (int)((keys + part - 1) / part);
    const long long first = (token * heads + head) * splits;
    float highest = weights[first].x;
    for (int at = 1; at < count; at++) highest = fmaxf(highest, weights[first + at].x);
    for (int column = threadIdx.x; column < DEPTH; column += blockDim.x) {
        float total = 0.0f, sum = 0.0f;
        for (int at = 0; at < count; at++) {
            const float2 weight = weights[first + at];
            const float share = exp2f(weight.x - highest);
            total = fmaf(share, weight.y, total);
            sum = fmaf(share, parts[(first + at) * DEPTH + column], sum);
        }
        out[head * out_head + token * out_token + column * out_step] = OUT_OF(sum / total);
    }
}
