// One step of a bitonic merge in scratch memory: a thread for every pair of elements, at a distance, or mirrored in blocks of
// twice the distance. What is beyond the end of a line counts as larger than anything, and stays where it is.

extern "C" __global__ void __launch_bounds__(256) NAME(
    Packed *scratch, long long lines, long long length, long long pairs, long long distance, long long mirrored) {
    const long long step = gridDim.x * 256ll;
    for (long long number = blockIdx.x * 256ll + threadIdx.x; number < lines * pairs; number += step) {
        const long long line = number / pairs, pair = number - line * pairs;
        const long long within = pair & (distance - 1), start = (pair - within) * 2;
        const long long a = start + within, b = start + (mirrored ? 2 * distance - 1 - within : distance + within);
        if (b >= length) continue;
        Packed *own = scratch + line * length;
        const Packed first = own[a], second = own[b];
        if (less(second, first)) {
            own[a] = second;
            own[b] = first;
        }
    }
}
