#include <tessera/tessera.h>
#include <stdio.h>

int main(void) {
    printf("%s%d\n", tess_last_error(), tess_exit_code(TESS_E_PEER));
    return 0;
}
