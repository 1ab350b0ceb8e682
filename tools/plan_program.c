#include "plan.h"
#include "status.h"
tess_status plan_program_run(char *const *argv, int32_t ranks, char path[64], int *code) {
    (void)ranks;
    (void)path;
    (void)code;
    return tess__fail(TESS_E_UNSUPPORTED, "%s: programs are not planned yet", argv[0]);
}
