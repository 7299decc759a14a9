// out[m, i, j, c] = what the samples of bin i, j of region m contribute, of channel c of its image. REAL is the type of
// coordinates. A thread computes one element; neighbouring threads have neighbouring channels.
//
// Samples more than a pixel away from the image contribute zero, and of a bin with many samples only those are visited that
// the image has room for, so that any region comes to an end.

// One report is enough: the first thread that finds it free fills it in, and marks it as complete last.
__device__ __noinline__ void complain(unsigned long long *report, long long found, long long size, long long axis) {
    if (atomicCAS(report, 0ull, 2ull) == 0ull) {
        volatile long long *fields = (volatile long long *)report;
        fields[1] = found;
        fields[2] = size;
        fields[3] = axis;
        __threadfence_system();
        fields[0] = 1;
    }
}

// The extent of a region along an axis.
struct Span {
    REAL first, bin, samples;
    long long size, from, to;

    __device__ Span(REAL start, REAL end, long long bins, long long index, long long size, REAL scale, long long fixed)
        : size(size) {
        const REAL shift = ALIGNED ? (REAL)0.5 : (REAL)0;
        // Products are rounded before they are added, as on the host.
        const REAL begin = SUB(MUL(start, scale), shift), finish = SUB(MUL(end, scale), shift);
        REAL extent = SUB(finish, begin);
        if (!ALIGNED && !(extent > (REAL)1)) extent = (REAL)1;
        bin = extent / (REAL)bins;
        const double adaptive = ::ceil((double)bin);
        samples = fixed > 0 ? (REAL)fixed : (REAL)(adaptive > 0 ? adaptive : 0.0);
        first = ADD(begin, MUL((REAL)index, bin));
        from = 0;
        to = whole((double)samples);
        const long long most = 2 * size + 8;
        if (to > (most > 4096 ? most : 4096)) {
            const double step = (double)(bin / samples);
            const long long before = whole(::floor((-1.0 - (double)first) / step));
            from = before < 2 ? 0 : before - 2;
            from = from > to ? to : from;
            if (to - from > most) to = from + most;
        }
    }

    // A conversion that saturates; NaN becomes zero.
    static __device__ long long whole(double x) {
        if (!(x > -9.2e18)) return x != x ? 0 : -0x7fffffffffffffffll;
        return x < 9.2e18 ? (long long)x : 0x7fffffffffffffffll;
    }

    // The pixels and weights of a sample; false if it is outside.
    __device__ bool sample(long long index, long long at[2], REAL weights[2]) const {
        double y = (double)ADD(first, MUL(ADD((REAL)index, (REAL)0.5), bin) / samples);
        if (size == 0 || !(y >= -1.0 && y <= (double)size)) return false;
        y = y > 0 ? y : 0;
        double low = ::floor(y);
        if (low > (double)(size - 1)) low = (double)(size - 1);
        at[0] = (long long)low;
        at[1] = at[0] + 1 < size ? at[0] + 1 : size - 1;
        weights[1] = SUB((REAL)y, (REAL)low);
        weights[0] = SUB((REAL)1, weights[1]);
        return true;
    }
};

__device__ __forceinline__ REAL larger(REAL a, REAL b) { return a != a || a >= b ? a : b; }

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *source, const REAL *rois, IN *out, unsigned long long *report, long long images, long long height,
    long long width, long long channels, long long regions, long long rows, long long columns, double scale,
    long long fixed, long long source_n, long long source_h, long long source_w, long long source_c, long long roi_m,
    long long roi_i, long long out_m, long long out_h, long long out_w, long long out_c) {
    const long long total = regions * rows * columns * channels;
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < total; at += (long long)gridDim.x * 256) {
        const long long c = at % channels, j = at / channels % columns, i = at / channels / columns % rows;
        const long long m = at / channels / columns / rows;
        const REAL *roi = rois + m * roi_m;
        const double image = ::trunc((double)roi[0]);
        IN *to = out + m * out_m + i * out_h + j * out_w + c * out_c;
        if (!(image >= 0.0 && image < (double)images)) {
            if (c == 0 && i == 0 && j == 0) complain(report, Span::whole(image), images, 0);
            *to = IN_OF((SUM)0);
            continue;
        }
        const Span down(roi[2 * roi_i], roi[4 * roi_i], rows, i, height, (REAL)scale, fixed);
        const Span across(roi[1 * roi_i], roi[3 * roi_i], columns, j, width, (REAL)scale, fixed);
        const IN *pixels = source + (long long)image * source_n + c * source_c;
        REAL value = MAX ? (REAL)-__int_as_float(0x7f800000) : (REAL)0;
        REAL count = MUL(down.samples, across.samples);
        long long seen_down = 0, seen_across = 0;
        for (long long sy = down.from; sy < down.to; sy++) {
            long long y[2];
            REAL v[2];
            if (!down.sample(sy, y, v)) continue;
            seen_down++;
            seen_across = 0;
            for (long long sx = across.from; sx < across.to; sx++) {
                long long x[2];
                REAL w[2];
                if (!across.sample(sx, x, w)) continue;
                seen_across++;
                REAL terms[4];
                for (int corner = 0; corner < 4; corner++) {
                    const long long place = y[corner >> 1] * source_h + x[corner & 1] * source_w;
                    terms[corner] = MUL((REAL)SUM_OF_IN(pixels[place]), MUL(v[corner >> 1], w[corner & 1]));
                }
                if (MAX) {
                    for (int corner = 0; corner < 4; corner++) value = larger(value, terms[corner]);
                } else {
                    value = ADD(value, ADD(ADD(ADD(terms[0], terms[1]), terms[2]), terms[3]));
                }
            }
        }
        if (MAX) {
            const bool all = (double)seen_down >= (double)down.samples && (double)seen_across >= (double)across.samples;
            if (!all || seen_down == 0 || seen_across == 0) value = larger(value, (REAL)0);
        } else {
            value = value / (count > (REAL)1 ? count : (REAL)1);
        }
        *to = IN_OF((SUM)value);
    }
}
