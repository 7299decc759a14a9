// out[o, i, j, k] is a weighted sum of the neighbours of its position along rows and columns. Beyond the ends of an axis
// its last elements repeat. Neighbours without weight are not read: they may be infinite.

#define LINEAR 0
#define CUBIC 1
#define TENT 2

// A sum of integers before it is truncated: what is an integer but for rounding errors is that integer.
__device__ __forceinline__ double settled(double sum) {
    const double near = rint(sum), size = fabs(near);
    return fabs(sum - near) <= 1e-9 * (size > 1.0 ? size : 1.0) ? near : sum;
}

// Truncates and saturates; NaN is zero.
template <typename T> __device__ __forceinline__ T whole(double x, double bottom, double top, T least, T most) {
    return x >= top ? most : x <= bottom ? least : x == x ? (T)x : (T)0;
}

// The neighbours of a position: the first and the end, and what their weights depend on.
struct Neighbours {
    long long first, end, base;
    ACC part, distance;

    __device__ __forceinline__ ACC weight(long long at) const {
        const ACC x = (ACC)(at - base) - part;
        const ACC far = x < (ACC)0 ? -x : x;
        if (FILTER == CUBIC) {
            const ACC a = (ACC)-0.75;
            return far <= (ACC)1 ? ((a + (ACC)2) * far - (a + (ACC)3)) * far * far + (ACC)1
                                 : ((a * far - (ACC)5 * a) * far + (ACC)8 * a) * far - (ACC)4 * a;
        }
        const ACC left = (ACC)1 - far / distance;
        return left > (ACC)0 ? left : (ACC)0;
    }

    // What the weights add up to: less than one only if a wide filter is cut off at an end.
    __device__ __forceinline__ ACC total() const {
        if (FILTER != TENT || distance == (ACC)1) return (ACC)1;
        ACC sum = 0;
        for (long long at = first; at < end; at++) sum += weight(at);
        return sum;
    }
};

__device__ __forceinline__ Neighbours neighbours(long long at, long long size, long long count) {
    const Position p = position(at, size, count);
    Neighbours n;
    n.base = p.base;
    n.part = (ACC)p.rest / (ACC)p.whole;
    n.distance = (ACC)1;
    n.first = FILTER == CUBIC ? p.base - 1 : p.base;
    n.end = FILTER == CUBIC ? p.base + 3 : p.base + 2;
    if (FILTER == TENT && size > count) {
        n.distance = (ACC)size / (ACC)count;
        // As many on either side as may have a weight.
        const long long reach = (size - 1) / count + 2;
        n.first = p.base - reach < 0 ? 0 : p.base - reach;
        n.end = p.base + reach + 1 < size ? p.base + reach + 1 : size;
    }
    return n;
}

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *source, IN *out, long long outer, long long height, long long width, long long out_height,
    long long out_width, long long inner, long long from_outer, long long from_down, long long from_across,
    long long from_inner, long long to_outer, long long to_down, long long to_across, long long to_inner) {
    const long long all = outer * out_height * out_width * inner;
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < all; at += gridDim.x * 256ll) {
        long long k, i, j, o;
        o = divide(divide(divide(at, inner, k), out_width, j), out_height, i);
        const Neighbours rows = neighbours(i, height, out_height), columns = neighbours(j, width, out_width);
        const IN *from = source + o * from_outer + k * from_inner;
        ACC sum = 0;
        for (long long y = rows.first; y < rows.end; y++) {
            const ACC down = rows.weight(y);
            if (down == (ACC)0) continue;
            const IN *row = from + clamp(y, height) * from_down;
            ACC along = 0;
            for (long long x = columns.first; x < columns.end; x++) {
                const ACC across = columns.weight(x);
                if (across != (ACC)0) along += across * LOAD(row[clamp(x, width) * from_across]);
            }
            sum += down * along;
        }
        const ACC total = rows.total() * columns.total();
        out[o * to_outer + i * to_down + j * to_across + k * to_inner] = STORE(sum / total);
    }
}
