// How many threads to compute with, and setting it once.
//
// available_threads(): CPUs this process may run on (affinity mask), counted as physical cores (two
// hyper-threads of one core count once) and limited by the container's CPU quota; at least 1.
// OpenMP keeps one pool per calling thread: run every plan from the same thread.
#pragma once

#include <vector>

namespace ortrain {

int available_threads();
// CPUs of the process's mask beyond the physical cores of its first `compute` ones: for threads
// that only feed the others.
std::vector<int> spare_cpus(int compute);
// Sets the size of OpenMP's pool, which the math library shares. n <= 0: available_threads().
// Returns the number set.
int set_threads(int n);

// Restarts the program once with OpenMP's waiting bounded to about 100 us; call first in main.
// GCC's OpenMP lets idle threads spin for 300,000 pauses (5-15 ms) before they sleep; on a machine
// that is busy otherwise the thread they wait for often sits behind the spinning one, and a step of
// 1 ms takes 200. The count is read when libgomp is loaded, hence the restart (about 10 ms). Does
// nothing where the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT.
void bound_spinning(char** argv);

}  // namespace ortrain
