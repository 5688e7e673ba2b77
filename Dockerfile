# Tidemark's own processes, all from one image: docker-compose.yml says which runs what. No build step: Node runs the
# TypeScript as it stands. The image has Node, so the copies of it among the optional dependencies are left out.
FROM node:24.21.0-bookworm-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# As locked, like `npm ci`, which however refuses a lock file without the optional packages of other platforms.
RUN npm install --no-save --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund

FROM node:24.21.0-bookworm-slim AS tidemark
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

# With a browser, for issuers' pages that scripts build: the followers'.
FROM tidemark AS tidemark-browser
USER root
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends chromium \
    && rm -rf /var/lib/apt/lists/*
ENV SVC_BROWSER_PATH=/usr/bin/chromium
USER node
