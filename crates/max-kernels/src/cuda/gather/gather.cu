// out[o, p, i] = source[o, indices[p].., i], moved in units of UNIT; strides are in units too, those of the indexed axes as
// well.
//
// 2^lanes_log2 threads copy a slice together, and a block has as many slices as fit. The second axis of the grid splits
// long slices. An index out of range is reported, and its slice is filled with zeros.

struct Sizes {
    long long outer, picks, inner, lanes_log2;
    long long source_outer, source_inner, index_outer, index_pick, out_outer, out_row, out_inner;
};

template <typename U>
__device__ __forceinline__ void gather(
    const U *source, const INDEX *indices, U *out, unsigned long long *report, const Sizes s, const Indexed &indexed) {
    const int lane = threadIdx.x & ((1 << s.lanes_log2) - 1);
    const long long slices = s.outer * s.picks, together = 256 >> s.lanes_log2;
    const long long step = (long long)gridDim.y << s.lanes_log2;
    for (long long slice = blockIdx.x * together + (threadIdx.x >> s.lanes_log2); slice < slices;
         slice += gridDim.x * together) {
        const long long o = s.outer == 1 ? 0 : slice / s.picks, p = slice - o * s.picks;
        long long i = ((long long)blockIdx.y << s.lanes_log2) + lane, place;
        U *to = out + o * s.out_outer + p * s.out_row;
        if (!find(indexed, indices + o * s.index_outer + p * s.index_pick, i == 0, report, place)) {
            for (; i < s.inner; i += step) to[i * s.out_inner] = U();
            continue;
        }
        const U *from = source + o * s.source_outer + place;
        for (; i + 3 * step < s.inner; i += 4 * step) {
            const U a = from[i * s.source_inner], b = from[(i + step) * s.source_inner];
            const U c = from[(i + 2 * step) * s.source_inner], d = from[(i + 3 * step) * s.source_inner];
            to[i * s.out_inner] = a;
            to[(i + step) * s.out_inner] = b;
            to[(i + 2 * step) * s.out_inner] = c;
            to[(i + 3 * step) * s.out_inner] = d;
        }
        for (; i < s.inner; i += step) to[i * s.out_inner] = from[i * s.source_inner];
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(
    const UNIT *source, const INDEX *indices, UNIT *out, unsigned long long *report, long long outer, long long picks,
    long long inner, long long lanes_log2, long long source_outer, long long source_inner, long long index_outer,
    long long index_pick, long long out_outer, long long out_row, long long out_inner, long long axis,
    long long step PARAMS) {
    Sizes s = {outer, picks, inner, lanes_log2, source_outer, source_inner, index_outer, index_pick, out_outer, out_row,
               out_inner};
    Indexed indexed = {{SIZES 0}, {STRIDES 0}, axis, step};
    const unsigned long long places = (unsigned long long)source | (unsigned long long)out;
    if (places % sizeof(UNIT) == 0 || source_inner != 1 || out_inner != 1) {
        gather<UNIT>(source, indices, out, report, s, indexed);
    } else {
        // Memory that is not aligned to UNIT is moved as bytes.
        s.inner *= sizeof(UNIT);
        s.source_outer *= sizeof(UNIT);
        s.out_outer *= sizeof(UNIT);
        s.out_row *= sizeof(UNIT);
        for (int c = 0; c < AXES; c++) indexed.strides[c] *= sizeof(UNIT);
        gather<unsigned char>((const unsigned char *)source, indices, (unsigned char *)out, report, s, indexed);
    }
}
