/* Which suites there are, in the order in which they run. */
#include "suites.h"

const check_suite check_suites[] = {
    { "static", 0, 1, check_cases_static },
    { "abi", 0, 0, check_cases_abi },
    { 0 },
};
