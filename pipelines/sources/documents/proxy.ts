/**
 * The user's proxy, by the variables that other programs read: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in small letters too. It is for
 * vendors alone; servers of this machine are never asked through it.
 */
import type { Agent } from 'node:http';
import { isIP } from 'node:net';
import { kindOfAddress } from './addresses.ts';

type Environment = Readonly<Record<string, string | undefined>>;

const agents = new Map<string, Agent>();

/** @returns an agent that asks for the URL through the user's proxy; undefined where it is asked directly */
export function proxyFor(url: URL, Agents: typeof Agent, env: Environment = process.env): Agent | undefined {
  const name = `${url.protocol.slice(0, -1)}_proxy`;
  const proxy = env[name] ?? env[name.toUpperCase()];
  if (!proxy || isDirect(url, env.no_proxy ?? env.NO_PROXY ?? '')) return undefined;
  const key = `${url.protocol} ${proxy}`;
  let agent = agents.get(key);
  if (!agent) {
    agent = new Agents({ keepAlive: true, proxyEnv: { http_proxy: proxy, https_proxy: proxy } });
    agents.set(key, agent);
  }
  return agent;
}

/** Whether NO_PROXY names the host, a domain that it is in, or everything: `example.org`, `.example.org`, `example.org:8443`, `*`. */
function isDirect({ hostname, port, protocol }: URL, noProxy: string): boolean {
  const host = hostname.toLowerCase().replace(/^\[(.*)\]$/, '$1');
  if (host === 'localhost' || host.endsWith('.localhost')) return true;
  if (isIP(host) !== 0 && kindOfAddress(host) === 'loopback') return true;
  const ownPort = port === '' ? (protocol === 'https:' ? '443' : '80') : port;
  return noProxy
    .toLowerCase()
    .split(/[\s,]+/)
    .filter((entry) => entry !== '')
    .some((entry) => {
      if (entry === '*') return true;
      const [, name, ofPort] = /^(?:\*?\.)?(.*?)(?::(\d+))?$/.exec(entry) ?? [];
      return (host === name || host.endsWith(`.${name}`)) && (ofPort === undefined || ofPort === ownPort);
    });
}
