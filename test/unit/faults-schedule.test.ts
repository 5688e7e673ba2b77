/** What a campaign of faults does is drawn from its seed alone, and leaves no kind of fault out. */
import { expect, test } from 'vitest';
import { doubler } from '../faults/proxy.ts';
import { FAULT_KINDS, LINKS, PROCESSES, planText, type Round, roundsOf } from '../faults/schedule.ts';

function firstRounds(seed: number, count: number): Round[] {
  const found: Round[] = [];
  for (const round of roundsOf(seed)) {
    found.push(round);
    if (found.length === count) break;
  }
  return found;
}

test('the same seed gives the same rounds, and another one others', () => {
  expect(firstRounds(7, 5)).toEqual(firstRounds(7, 5));
  expect(planText(7, 3)).toBe(planText(7, 3));
  expect(firstRounds(8, 5)).not.toEqual(firstRounds(7, 5));
});

test('a few rounds strike with every kind of fault, every process and every link', () => {
  for (const seed of [1, 2, 3]) {
    const steps = firstRounds(seed, 4).flatMap((round) => round.steps);
    expect(new Set(steps.map(({ kind }) => kind))).toEqual(new Set(FAULT_KINDS));
    const targetsOf = (wanted: string) =>
      new Set(steps.filter(({ kind }) => kind === wanted).map(({ target }) => target));
    expect(targetsOf('kill')).toEqual(new Set(PROCESSES));
    expect(targetsOf('stop')).toEqual(new Set(PROCESSES));
    for (const kind of ['cut', 'delay', 'half-open', 'refuse']) expect(targetsOf(kind), kind).toEqual(new Set(LINKS));
  }
});

test('days are counted from the beginning of an epoch, and a revision is of a day that is there', () => {
  const known = new Set<string>();
  for (const { isFresh, days, revisions } of firstRounds(3, 12)) {
    if (isFresh) known.clear();
    for (const { exchange, index } of days) {
      expect(known.has(`${exchange} ${index}`)).toBe(false);
      known.add(`${exchange} ${index}`);
    }
    for (const { exchange, index } of revisions) expect(known.has(`${exchange} ${index}`)).toBe(true);
  }
});

test('messages of a stream are said twice, however the bytes are cut, and nothing else is', () => {
  const reply = '$JS.ACK.stream.consumer.1.5.5.1700000000000000000.0';
  const said = (payload: string) => `MSG subject 1 ${reply} ${payload.length}\r\n${payload}\r\n`;
  const headed = `HMSG subject 1 ${reply} 12 17\r\nNATS/1.0\r\n\r\nhello\r\n`;
  const others = 'INFO {"a":1}\r\nPING\r\nMSG inbox 2 3\r\nab\r\n\r\n+OK\r\n'.replace('MSG inbox 2 3', 'MSG inbox 2 4');
  const text = `${others}${said('one\r\ntwo')}${headed}PONG\r\n`;
  const twice = `${others}${said('one\r\ntwo').repeat(2)}${headed.repeat(2)}PONG\r\n`;
  for (const size of [1, 3, 7, 1000]) {
    for (const isDoubling of [false, true]) {
      const pass = doubler();
      let heard = '';
      for (let at = 0; at < text.length; at += size) {
        heard += pass(Buffer.from(text.slice(at, at + size), 'latin1'), isDoubling).toString('latin1');
      }
      expect(heard, `pieces of ${size}`).toBe(isDoubling ? twice : text);
    }
  }
});
