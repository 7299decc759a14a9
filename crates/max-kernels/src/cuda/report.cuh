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

