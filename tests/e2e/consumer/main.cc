#include <tessera/tessera.h>
#include <cstdio>

int main() {
    std::printf("%s%d\n", tess_last_error(), tess_exit_code(TESS_E_PEER));
    return 0;
}
