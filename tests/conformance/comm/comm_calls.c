#include "comm_suite.h"
const struct comm_case comm_cases_calls[] = { { 0 } };
