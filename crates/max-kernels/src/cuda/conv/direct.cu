// Convolutions of small groups: each thread computes one element; neighbouring threads go along filters if those are
// contiguous in the result, else along columns.

extern "C" __global__ void __launch_bounds__(256) NAME(PARAMETERS) {
    const long long positions = batch * out_height * out_width, all = positions * filters;
    const long long group_filters = filters / groups, group_channels = channels / groups;
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < all; at += gridDim.x * 256ll) {
        long long position, number;
        if (out_filter == 1) {
            position = divide(at, filters, number);
        } else {
            // Positions of an image, then filters, then images.
            const long long image = out_height * out_width;
            long long inner;
            number = divide(at, image, inner);
            position = divide(number, filters, number) * image + inner;
        }
        Window window;
        WINDOW(position, window);
        long long rest;
        const long long first = divide(number, group_filters, rest) * group_channels;
        const IN *image = input + window.image + first * in_channel;
        const IN *weights = filter + number * tap_filter;
        SUM sum = SUM(0);
        for (long long i = 0; i < taps_down; i++) {
            const long long y = window.y + i * dilation_down;
            if (!within(y, height)) continue;
            for (long long j = 0; j < taps_across; j++) {
                const long long x = window.x + j * dilation_across;
                if (!within(x, width)) continue;
                const IN *pixel = image + y * in_down + x * in_across;
                const IN *tap = weights + i * tap_down + j * tap_across;
                for (long long c = 0; c < group_channels; c++) {
                    sum = STEP(SUM_OF_IN(pixel[c * in_channel]), SUM_OF_IN(tap[c * tap_channel]), sum);
                }
            }
        }
        long long place;
        PLACE(position, place);
        out[place + number * out_filter] = OUT_OF(sum);
    }
}
