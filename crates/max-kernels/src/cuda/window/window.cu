// The maximum or the mean of each window: a thread has one result. Neighbouring threads go along channels if those are
// contiguous in the result, else along columns.

// Quotient and remainder; most numbers fit in 32 bits, which divide much faster.
__device__ __forceinline__ long long divide(long long number, long long by, long long &rest) {
    if ((((unsigned long long)number | (unsigned long long)by) >> 32) == 0) {
        const unsigned int quotient = (unsigned int)number / (unsigned int)by;
        rest = (unsigned int)number - quotient * (unsigned int)by;
        return quotient;
    }
    const long long quotient = number / by;
    rest = number - quotient * by;
    return quotient;
}

// What a window covers of an axis: its taps inside, where the first of them is, and how many count.
struct Span {
    long long first, len, count;
};

__device__ __forceinline__ long long tap_from(long long ahead, long long dilation, long long taps) {
    if (ahead <= 0) return 0;
    const long long tap = dilation == 1 ? ahead : (ahead - 1) / dilation + 1;
    return tap < taps ? tap : taps;
}

__device__ __forceinline__ Span span_of(
    long long position, long long size, long long taps, long long stride, long long dilation, long long before,
    long long after) {
    const long long start = position * stride - before;
    const long long from = tap_from(-start, dilation, taps), to = tap_from(size - start, dilation, taps);
    Span span = {start + from * dilation, to - from, to - from};
    if (PADDED) span.count = tap_from(size + after - start, dilation, taps);
    return span;
}

// The sum of no elements is divided by one.
__device__ __forceinline__ long long at_least_one(long long count) { return count > 0 ? count : 1; }

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *input, OUT *out, long long batch, long long out_height, long long out_width, long long channels,
    long long height, long long width, long long taps_down, long long taps_across, long long stride_down,
    long long stride_across, long long dilation_down, long long dilation_across, long long top, long long bottom,
    long long left, long long right, long long in_batch, long long in_down, long long in_across, long long in_channel,
    long long out_batch, long long out_down, long long out_across, long long out_channel) {
    const long long image_size = out_height * out_width, all = batch * image_size * channels;
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < all; at += gridDim.x * 256ll) {
        long long position, channel, line, column;
        if (out_channel == 1) {
            position = divide(at, channels, channel);
        } else {
            // Positions of an image, then channels, then images.
            long long inside;
            channel = divide(at, image_size, inside);
            position = divide(channel, channels, channel) * image_size + inside;
        }
        line = divide(position, out_width, column);
        const long long image = divide(line, out_height, line);
        const Span rows = span_of(line, height, taps_down, stride_down, dilation_down, top, bottom);
        const Span columns = span_of(column, width, taps_across, stride_across, dilation_across, left, right);
        const IN *from = input + image * in_batch + channel * in_channel + rows.first * in_down + columns.first * in_across;
        const long long down = dilation_down * in_down, across = dilation_across * in_across;
        ACC total = START;
        for (long long i = 0; i < rows.len; i++) {
            ACC sum = START;
            for (long long j = 0; j < columns.len; j++) sum = JOIN(sum, LOAD(from[i * down + j * across]));
            total = JOIN(total, sum);
        }
        out[image * out_batch + line * out_down + column * out_across + channel * out_channel] =
            STORE(total, at_least_one(rows.count * columns.count));
    }
}
