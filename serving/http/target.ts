/** What a request asks for: the path and query of its first line. */
import { Problem } from '../contract/problems.ts';

/**
 * Parses a request target: a path, or an absolute URL as clients send it to proxies. The host of the result stands for
 * nothing.
 * @throws Problem HTTP_REQUEST_MALFORMED
 */
export function parseTarget(target: string): URL {
  // A path cannot fail: it is appended to a host, so that `//a` is a path too.
  const url = URL.parse(target.startsWith('/') ? `http://service${target}` : target, 'http://service');
  if (url) return url;
  throw new Problem(
    'HTTP_REQUEST_MALFORMED',
    'The request target cannot be parsed: send a path such as /healthz, or an absolute http URL.',
  );
}
