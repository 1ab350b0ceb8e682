/* The checks, a file or two for each suite. Each list ends with a null name. */
#ifndef TESSERA_CHECK_SUITES_H
#define TESSERA_CHECK_SUITES_H
#include "check.h"

extern const check_case check_cases_static[], check_cases_abi[];
#endif
