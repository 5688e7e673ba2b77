# Tidemark's own processes, all from one image: docker-compose.yml says which runs what. No build step: Node runs the
# TypeScript as it stands. The image has Node, so the copies of it among the optional dependencies are left out.
FROM node:24.21.0-bookworm-slim@sha256:2fe369e969550cde8e867afc3fe370b260140cab4a23d467074295b42163d553 AS dependencies
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# As locked, like `npm ci`, which however refuses a lock file without the optional packages of other platforms.
RUN npm install --no-save --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund

FROM node:24.21.0-bookworm-slim@sha256:2fe369e969550cde8e867afc3fe370b260140cab4a23d467074295b42163d553 AS tidemark
ENV NODE_ENV=production \
    # Stripped and compiled sources, where the file system is not read-only: the next start takes half the time.
    NODE_COMPILE_CACHE=/tmp/tidemark-compile \
    # What is kept: documents that cannot be fetched again, exports, downloads under way.
    SVC_STATE_DIR=/state
# Owned by root and read by all: what runs cannot change what it runs.
WORKDIR /app
COPY --from=dependencies /app/node_modules ./node_modules
COPY package.json package-lock.json .npmrc ./
COPY client ./client
COPY migrations ./migrations
COPY shared ./shared
COPY pipelines ./pipelines
COPY serving ./serving
# A new volume takes its owner from here.
RUN mkdir --mode=700 /state && chown node:node /state
USER node
VOLUME /state
EXPOSE 8080
ENTRYPOINT ["node", "--initial-old-space-size=512"]
CMD ["serving/main.ts"]

# With a browser, for issuers' pages that scripts build: the followers'. One version of it, and of all that it needs, from
# Debian's archive of one day, which keeps what the mirrors drop. A newer one is chosen here, both values together.
FROM tidemark AS tidemark-browser
ARG CHROMIUM_VERSION=156.0.8078.79-1~deb12u1
ARG DEBIAN_DAY=20261121T060000Z
USER root
RUN rm -f /etc/apt/sources.list.d/* \
    && for archive in "debian/$DEBIAN_DAY bookworm" "debian-security/$DEBIAN_DAY bookworm-security"; do \
         echo "deb [check-valid-until=no] http://snapshot.debian.org/archive/$archive main"; \
       done > /etc/apt/sources.list \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "chromium=$CHROMIUM_VERSION" "chromium-common=$CHROMIUM_VERSION" \
    && rm -rf /var/lib/apt/lists/*
ENV SVC_BROWSER_PATH=/usr/bin/chromium
USER node
