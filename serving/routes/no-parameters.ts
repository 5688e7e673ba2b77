import { z } from 'zod';

/** Of routes whose URL takes none: one that is there is refused, not ignored. */
export const NO_PARAMETERS = z.strictObject({});
