// A block for every line finds its first few elements: it counts digits, from the highest on, among the elements that start
// with the digits found so far, until those up to the one that is found are as many as are wanted. It collects these and
// sorts them.

constexpr int TILE = 2048;
constexpr int COPIES = 8;

extern "C" __global__ void __launch_bounds__(512) NAME(
    const BITS *source, BITS *values, long long *indices, long long lines, long long size, long long count,
    long long length, long long size_0, long long size_1, long long size_2, long long size_3, PLACES(from),
    PLACES(to_values), PLACES(to_indices)) {
    __shared__ Packed chosen[TILE];
    // Warps count in different copies, so that they wait less for each other.
    __shared__ unsigned int counts[COPIES][256];
    __shared__ unsigned int found, before, inside, taken;
    const Places from = PLACES_OF(from), to_values = PLACES_OF(to_values), to_indices = PLACES_OF(to_indices);
    unsigned int *own = counts[(threadIdx.x >> 5) % COPIES];
    for (long long number = blockIdx.x; number < lines; number += gridDim.x) {
        const Line line = LINE(number);
        Packed prefix = none();
        unsigned int wanted = (unsigned int)count;
        int digits = 0;
        while (digits < DIGITS) {
            for (unsigned int i = threadIdx.x; i < COPIES * 256; i += blockDim.x) counts[i / 256][i % 256] = 0;
            if (threadIdx.x == 0) found = before = inside = 0;
            __syncthreads();
            const Packed start = head(prefix, digits);
#pragma unroll 4
            for (long long i = threadIdx.x; i < size; i += blockDim.x) {
                const Packed x = line.at(i), own_start = head(x, digits);
                if (!less(own_start, start) && !less(start, own_start)) atomicAdd(&own[digit(x, digits)], 1u);
            }
            __syncthreads();
            if (threadIdx.x < 32) {
                // A thread has eight digits; the sums up to each thread follow from those in its warp.
                unsigned int of[8], sum = 0;
                for (int d = 0; d < 8; d++) {
                    of[d] = 0;
                    for (int copy = 0; copy < COPIES; copy++) of[d] += counts[copy][threadIdx.x * 8 + d];
                    sum += of[d];
                }
                unsigned int up_to = sum;
                for (unsigned int distance = 1; distance < 32; distance *= 2) {
                    const unsigned int other = __shfl_up_sync(0xffffffffu, up_to, distance);
                    if (threadIdx.x >= distance) up_to += other;
                }
                unsigned int passed = up_to - sum;
                if (passed < wanted && wanted <= up_to) {
                    int d = 0;
                    while (d < 7 && passed + of[d] < wanted) passed += of[d++];
                    found = threadIdx.x * 8 + d;
                    before = passed;
                    inside = of[d];
                }
            }
            __syncthreads();
            prefix = with_digit(prefix, digits, found);
            digits++;
            wanted -= before;
            const bool exact = inside == wanted;
            __syncthreads();
            if (exact) break;
        }
        if (threadIdx.x == 0) taken = 0;
        for (unsigned int i = threadIdx.x; i < length; i += blockDim.x) chosen[i] = last();
        __syncthreads();
        const Packed end = head(prefix, digits);
#pragma unroll 4
        for (long long i = threadIdx.x; i < size; i += blockDim.x) {
            const Packed x = line.at(i);
            if (!less(end, head(x, digits))) {
                const unsigned int slot = atomicAdd(&taken, 1u);
                if (slot < length) chosen[slot] = x;
            }
        }
        __syncthreads();
        sort_in_block(chosen, (unsigned int)length);
        for (long long at = threadIdx.x; at < count; at += blockDim.x) {
            line.put(at, chosen[at]);
        }
        __syncthreads();
    }
}
