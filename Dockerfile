# SPDX-License-Identifier: BSD-3-Clause
# The command, the library and its headers on Debian 12, from a checkout:
#   docker build -t tessera .
#   docker run --rm --shm-size=1g tessera train gpt -n 2 --steps 200
# e2e/test_dockerfile_slow builds and uses it with buildah; Docker itself has not been tried.
FROM debian:12 AS build
COPY . /src
WORKDIR /src
RUN tools/quickstart packages \
 && cmake --preset release -DTESSERA_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/opt/tessera \
 && cmake --build --preset release \
 && cmake --install build/release --strip

FROM debian:12
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential cmake pkg-config libgloo0 libssl3 libhwloc15 libdnnl2 zlib1g libxxhash0 libpcre2-8-0 libutf8proc2 libsentencepiece0 liburing2 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/tessera /opt/tessera
ENV PATH=/opt/tessera/bin:$PATH CMAKE_PREFIX_PATH=/opt/tessera PKG_CONFIG_PATH=/opt/tessera/lib/pkgconfig
RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
ENTRYPOINT ["tessera"]
CMD ["--help"]
