// out[o, i, j, k] is the element of the source that is nearest to its position, moved as UNIT whatever it means.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const UNIT *source, UNIT *out, long long outer, long long height, long long width, long long out_height,
    long long out_width, long long inner, long long from_outer, long long from_down, long long from_across,
    long long from_inner, long long to_outer, long long to_down, long long to_across, long long to_inner) {
    const long long all = outer * out_height * out_width * inner;
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < all; at += gridDim.x * 256ll) {
        long long k, i, j, o;
        o = divide(divide(divide(at, inner, k), out_width, j), out_height, i);
        const long long y = nearest(position(i, height, out_height), height);
        const long long x = nearest(position(j, width, out_width), width);
        out[o * to_outer + i * to_down + j * to_across + k * to_inner] =
            source[o * from_outer + y * from_down + x * from_across + k * from_inner];
    }
}
