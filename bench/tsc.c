// SPDX-License-Identifier: GPL-2.0
/* Prints the rate of the time stamp counter in Hz, measured in 0.1 s. */
#include <x86intrin.h>

#include "common.h"

int main(void)
{
	const struct timespec pause = { .tv_nsec = 100000000 };
	double ns = now_ns();
	double ticks = __rdtsc();

	nanosleep(&pause, NULL);
	ns = now_ns() - ns;
	ticks = __rdtsc() - ticks;
	printf("%.0f\n", ticks * 1e9 / ns);
	return 0;
}
