/**
 * The query builder, as CommonJS: its package.json lists a thousand entry points, and Node reads that list again for each
 * module that is imported from the package, but not for one that is required. 70 ms to load, against 400.
 */
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
export const orm = require('drizzle-orm') as typeof import('drizzle-orm');
export const pgCore = require('drizzle-orm/pg-core') as typeof import('drizzle-orm/pg-core');
export const { drizzle } = require('drizzle-orm/node-postgres') as typeof import('drizzle-orm/node-postgres');
