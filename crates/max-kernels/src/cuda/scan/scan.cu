// out[o, s, i] = the sum of source[o, ..=s, i]; EXCLUSIVE leaves out its own element, REVERSE starts at the end of the axis.
//
// Many neighbouring lines are summed by a thread each. Otherwise a block sums a line, tile after tile: a thread has some
// elements in a row, and the sums of threads and of warps are combined in a fixed order.

struct Line {
    const IN *source;
    IN *out;
    long long size, source_step, out_step;

    __device__ __forceinline__ ACC at(long long i) const { return (ACC)SUM_OF_IN(source[place(i) * source_step]); }
    __device__ __forceinline__ void put(long long i, ACC sum) const { out[place(i) * out_step] = IN_OF((SUM)sum); }
    __device__ __forceinline__ long long place(long long i) const { return REVERSE ? size - 1 - i : i; }
};

__device__ void sum_alone(const Line line) {
    ACC sum = 0;
    for (long long i = 0; i < line.size; i++) {
        const ACC next = sum + line.at(i);
        line.put(i, EXCLUSIVE ? sum : next);
        sum = next;
    }
}

// Every thread of the block calls this for the same line.
__device__ void sum_together(const Line line) {
    constexpr int EACH = 4, WARPS = 8;
    __shared__ ACC warps[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    ACC before = 0;
    for (long long start = 0; start < line.size; start += 256 * EACH) {
        const long long first = start + (long long)threadIdx.x * EACH;
        ACC own[EACH], sum = 0;
        for (int e = 0; e < EACH; e++) {
            own[e] = first + e < line.size ? line.at(first + e) : (ACC)0;
            sum += own[e];
        }
        // The sums of the threads up to this one in its warp.
        ACC running = sum;
        for (int distance = 1; distance < 32; distance *= 2) {
            const ACC other = __shfl_up_sync(0xffffffffu, running, distance);
            if (lane >= distance) running += other;
        }
        if (lane == 31) warps[warp] = running;
        __syncthreads();
        ACC offset = before, total = before;
        for (int w = 0; w < WARPS; w++) {
            if (w == warp) offset = total;
            total += warps[w];
        }
        const ACC threads = __shfl_up_sync(0xffffffffu, running, 1);
        if (lane > 0) offset += threads;
        for (int e = 0; e < EACH && first + e < line.size; e++) {
            const ACC next = offset + own[e];
            line.put(first + e, EXCLUSIVE ? offset : next);
            offset = next;
        }
        before = total;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *source, IN *out, long long outer, long long size, long long inner, long long alone,
    long long source_outer, long long source_step, long long source_inner, long long out_outer, long long out_step,
    long long out_inner) {
    const long long lines = outer * inner;
    const long long first = alone ? blockIdx.x * 256ll + threadIdx.x : blockIdx.x;
    const long long step = alone ? gridDim.x * 256ll : gridDim.x;
    for (long long number = first; number < lines; number += step) {
        const long long o = number / inner, i = number - o * inner;
        const Line line = {
            source + o * source_outer + i * source_inner, out + o * out_outer + i * out_inner, size, source_step, out_step};
        if (alone) sum_alone(line); else sum_together(line);
    }
}
