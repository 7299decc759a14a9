// Copies a tensor into part of another one, in units of UNIT; sizes and strides are in units too. Where the part starts along
// some axes is read from memory. A start or a stop out of range is reported, and then nothing is copied.

struct Axis {
    long long size, from, to;
};

struct Limit {
    long long axis, size, count, step, stride, stops;
};

extern "C" __global__ void __launch_bounds__(256) NAME(
    const UNIT *source, UNIT *out, unsigned long long *report, long long units PARAMS) {
    const Axis axes[RANK + 1] = {AXES {1, 0, 0}};
    const long long *const scalars[2 * BOUNDS] = {SCALARS};
    const Limit limits[BOUNDS] = {LIMITS};
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
#pragma unroll
    for (int bound = 0; bound < BOUNDS; bound++) {
        const Limit limit = limits[bound];
        const long long given = *scalars[2 * bound], stop = *scalars[2 * bound + 1];
        const long long start = given < 0 ? given + limit.size : given;
        bool fits = start >= 0 && start <= limit.size;
        fits = fits && (limit.count == 0 || start + (limit.count - 1) * limit.step < limit.size);
        if (!fits) {
            if (first) complain(report, given, limit.size, limit.axis);
            return;
        }
        const long long end = stop < 0 ? stop + limit.size : stop;
        // The division rounds down, also for an end before the start.
        const long long distance = end - start + limit.step - 1;
        const long long found = distance < 0 ? -1 : distance / limit.step;
        if (limit.stops && (end > limit.size || found != limit.count)) {
            if (first) complain(report, stop, limit.size, limit.axis);
            return;
        }
        out += start * limit.stride;
    }
    const long long step = (long long)gridDim.x * 256;
    for (long long at = (long long)blockIdx.x * 256 + threadIdx.x; at < units; at += step) {
        long long rest = at, from = 0, to = 0;
#pragma unroll
        for (int axis = RANK - 1; axis >= 0; axis--) {
            const long long next = rest / axes[axis].size, i = rest - next * axes[axis].size;
            from += i * axes[axis].from;
            to += i * axes[axis].to;
            rest = next;
        }
        out[to] = source[from];
    }
}
