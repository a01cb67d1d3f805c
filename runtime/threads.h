// How many threads to compute with, and setting it once.
//
// available_threads(): CPUs this process may run on (affinity mask), counted as physical cores (two
// hyper-threads of one core count once) and limited by the container's CPU quota; at least 1.
// OpenMP keeps one pool per calling thread: run every plan from the same thread.
#pragma once

namespace ortrain {

int available_threads();
// Sets the size of OpenMP's pool, which the math library shares. n <= 0: available_threads().
// Returns the number set.
int set_threads(int n);

}  // namespace ortrain
