/** Runs before each test file. */
import fc from 'fast-check';
import { SEED } from './seed.ts';

// fast-check tells seed and path of what it falsifies; beside them no other seed has to be printed.
fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: SEED });
