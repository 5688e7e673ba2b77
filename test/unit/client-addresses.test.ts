import { expect, test } from 'vitest';
import { HistoricalData } from '../../client/index.ts';

// Each attempt failed in `fetch`, and the error showed the password; a query swallowed the path of every request.
test.each(['http://user:password@127.0.0.1:1', 'http://127.0.0.1:1/?a=1', 'http://127.0.0.1:1/#a'])(
  'an address such as %s was tried five times and said not to be reached',
  (baseUrl) => {
    const making = () => new HistoricalData({ baseUrl, apiKey: 'k' });
    expect(making).toThrow(TypeError);
    expect(making).toThrow('baseUrl must have no user, query or fragment');
  },
);
