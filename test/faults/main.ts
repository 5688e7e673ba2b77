/**
 * `npm run faults -- --seed N --minutes M`: the whole system under faults that are drawn from a seed, until the time is over or
 * something is wrong; see test/README.md.
 *
 *   --seed N      what the schedule is drawn from (1)
 *   --minutes M   how long; the round in progress is finished (3)
 *   --json        the result as JSON
 *   --plan        prints the schedule's first rounds and runs nothing
 *   --rounds N    how many of them (3)
 */
import { parseArgs } from 'node:util';
import { runCampaign } from './campaign.ts';
import { planText } from './schedule.ts';

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    minutes: { type: 'string', default: '3' },
    rounds: { type: 'string', default: '3' },
    json: { type: 'boolean', default: false },
    plan: { type: 'boolean', default: false },
  },
});

const seed = Number(values.seed);
const minutes = Number(values.minutes);
if (!Number.isSafeInteger(seed) || seed < 0) throw new Error(`--seed takes a whole number, not ${values.seed}`);
if (!(minutes > 0)) throw new Error(`--minutes takes a number above zero, not ${values.minutes}`);

if (values.plan) {
  console.log(planText(seed, Number(values.rounds)));
} else {
  const { tally, seconds, folder } = await runCampaign({
    seed,
    minutes,
    progress: (line) => process.stderr.write(`${line}\n`),
  });
  const count = tally.failures.length;
  const summary = `campaign of seed ${seed}: ${tally.faultCount} faults in ${(seconds / 60).toFixed(1)} minutes, ${count} failures`;
  if (values.json) console.log(JSON.stringify(tally.json(seed, seconds), null, 2));
  else console.log(tally.table());
  for (const failure of tally.failures) console.log(`\nFAILURE in round ${tally.rounds}: ${failure}`);
  if (count > 0)
    console.log(
      `\nkept in ${folder}; the same schedule again: npm run faults -- --seed ${seed} --minutes ${minutes}; to read it: --seed ${seed} --plan`,
    );
  if (!values.json) console.log(summary);
  else process.stderr.write(`${summary}\n`);
  process.exit(count === 0 ? 0 : 1);
}
