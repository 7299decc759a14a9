// Updates are combined into out, which holds a copy of the input: pick p at (o, i) changes the element that its indices mean.
// The updates of an element are applied in the order of picks by one thread, or by threads of one block in turn, so that
// results do not vary. An index out of range is reported, and its update is left out.
//
// MODE says what a block has. ALONE: a thread per line, where there are many. ROWS: neighbouring lines that have the same
// indices, and a share of the places in them. CROWD: a share of the places in one line.

struct Sizes {
    long long outer, picks, inner;
    long long index_outer, index_pick, index_inner, update_outer, update_pick, update_inner, out_outer, out_inner;
};

__device__ __forceinline__ void combine(T *element, const T *update) { COMBINE }

#if MODE != ALONE
constexpr int WARPS = 8, EACH = 8, SPAN = 32 * EACH, TILE = WARPS * SPAN;

// The picks of a tile that belong to a block, in order: those that each warp found, and how many these are.
struct Queue {
    long long places[WARPS][SPAN];
    int picks[WARPS][SPAN], counts[WARPS];
};

// Which block has a place.
__device__ __forceinline__ unsigned share_of(long long place, unsigned shares) {
    return (unsigned)((unsigned long long)place * 0x9e3779b97f4a7c15ull >> 32) % shares;
}

// Every thread of the block calls this; the queue can be read afterwards, until the next call.
__device__ void collect(
    Queue &queue, const Indexed &indexed, const INDEX *indices, const Sizes &s, long long start,
    unsigned long long *report) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int count = 0;
    __syncthreads();
    for (int e = 0; e < EACH; e++) {
        const int pick = warp * SPAN + e * 32 + lane;
        long long place = 0;
        const bool own = start + pick < s.picks
            && find(indexed, indices + (start + pick) * s.index_pick, true, report, place)
            && share_of(place, gridDim.x) == blockIdx.x;
        const unsigned found = __ballot_sync(0xffffffffu, own);
        if (own) {
            const int at = count + __popc(found & ((1u << lane) - 1u));
            queue.places[warp][at] = place;
            queue.picks[warp][at] = pick;
        }
        count += __popc(found);
    }
    if (lane == 0) queue.counts[warp] = count;
    __syncthreads();
}
#endif

#if MODE == ALONE
__device__ __forceinline__ void scatter(
    T *out, const T *updates, const INDEX *indices, unsigned long long *report, const Sizes &s, const Indexed &indexed) {
    const long long lines = s.outer * s.inner;
    for (long long line = blockIdx.x * 256ll + threadIdx.x; line < lines; line += gridDim.x * 256ll) {
        const long long o = line / s.inner, i = line - o * s.inner;
        T *to = out + o * s.out_outer + i * s.out_inner;
        const T *from = updates + o * s.update_outer + i * s.update_inner;
        const INDEX *by = indices + o * s.index_outer + i * s.index_inner;
        for (long long pick = 0; pick < s.picks; pick++) {
            long long place;
            if (find(indexed, by + pick * s.index_pick, true, report, place)) {
                combine(to + place, from + pick * s.update_pick);
            }
        }
    }
}
#elif MODE == ROWS
__device__ __forceinline__ void scatter(
    T *out, const T *updates, const INDEX *indices, unsigned long long *report, const Sizes &s, const Indexed &indexed) {
    __shared__ Queue queue;
    for (long long o = blockIdx.z; o < s.outer; o += gridDim.z) {
        for (long long start = 0; start < s.picks; start += TILE) {
            collect(queue, indexed, indices + o * s.index_outer, s, start, report);
            const long long first = blockIdx.y * 256ll + threadIdx.x;
            for (long long i = first; i < s.inner; i += gridDim.y * 256ll) {
                T *to = out + o * s.out_outer + i * s.out_inner;
                const T *from = updates + o * s.update_outer + start * s.update_pick + i * s.update_inner;
                for (int warp = 0; warp < WARPS; warp++) {
                    for (int at = 0; at < queue.counts[warp]; at++) {
                        combine(to + queue.places[warp][at], from + queue.picks[warp][at] * s.update_pick);
                    }
                }
            }
        }
    }
}
#else
__device__ __forceinline__ void scatter(
    T *out, const T *updates, const INDEX *indices, unsigned long long *report, const Sizes &s, const Indexed &indexed) {
    __shared__ Queue queue;
    __shared__ long long batch[256];
    const long long lines = s.outer * s.inner;
    for (long long line = blockIdx.y; line < lines; line += gridDim.y) {
        const long long o = line / s.inner, i = line - o * s.inner;
        T *to = out + o * s.out_outer + i * s.out_inner;
        const T *from = updates + o * s.update_outer + i * s.update_inner;
        const INDEX *by = indices + o * s.index_outer + i * s.index_inner;
        for (long long start = 0; start < s.picks; start += TILE) {
            collect(queue, indexed, by, s, start, report);
            int total = 0;
            for (int warp = 0; warp < WARPS; warp++) total += queue.counts[warp];
            for (int done = 0; done < total; done += 256) {
                // A thread has an update; those to the same place take turns in order.
                int at = done + (int)threadIdx.x, warp = 0;
                const bool has = at < total;
                long long place = 0, pick = 0;
                if (has) {
                    while (at >= queue.counts[warp]) at -= queue.counts[warp++];
                    place = queue.places[warp][at];
                    pick = start + queue.picks[warp][at];
                    batch[threadIdx.x] = place;
                }
                __syncthreads();
                int turn = 0;
                if (has) {
                    for (int other = 0; other < (int)threadIdx.x; other++) turn += batch[other] == place;
                }
                for (int now = 0;; now++) {
                    if (has && turn == now) combine(to + place, from + pick * s.update_pick);
                    if (!__syncthreads_or(has && turn > now)) break;
                }
            }
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) NAME(
    T *out, const T *updates, const INDEX *indices, unsigned long long *report, long long outer, long long picks,
    long long inner, long long index_outer, long long index_pick, long long index_inner, long long update_outer,
    long long update_pick, long long update_inner, long long out_outer, long long out_inner, long long axis,
    long long step PARAMS) {
    const Sizes s = {outer, picks, inner, index_outer, index_pick, index_inner, update_outer, update_pick, update_inner,
                     out_outer, out_inner};
    const Indexed indexed = {{SIZES 0}, {STRIDES 0}, axis, step};
    scatter(out, updates, indices, report, s, indexed);
}
