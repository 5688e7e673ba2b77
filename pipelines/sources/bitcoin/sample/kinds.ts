/** Spends of every kind there is: what a sample shows and tests try. */
import { coinsOf, MATURITY, OPEN_OUTPUT, OPEN_WITNESS, pay, type SampleChain } from './chain.ts';
import {
  keyOf,
  multisig,
  note,
  payToKey,
  payToKeyHash,
  payToScriptHash,
  payToTaprootKey,
  payToWitnessKeyHash,
  payToWitnessScriptHash,
  taprootScript,
} from './keys.ts';

const BTC = 100_000_000;
const FEE = 10_000;

/** Spends of every kind from height 101 on: to and from each script there is, RBF, CPFP, notes, anchors. */
export async function addEveryKind(chain: SampleChain): Promise<void> {
  while (chain.height < MATURITY + 2) await chain.add();
  const keys = ['a', 'b', 'c'].map(keyOf);
  const [a, b] = keys;
  const twoOfThree = multisig(2, keys);
  const leaf = Buffer.of(0x51);
  const tree = taprootScript('tree', leaf);
  const wrapped = payToWitnessKeyHash(b);
  const kinds = [
    payToKey(a),
    payToKeyHash(a),
    payToWitnessKeyHash(a),
    payToTaprootKey(b),
    tree.payTo,
    twoOfThree,
    payToScriptHash(twoOfThree),
    payToWitnessScriptHash(twoOfThree),
    payToScriptHash(wrapped),
    payToScriptHash(payToWitnessScriptHash(twoOfThree)),
    // spendable by anyone: an anchor, a witness program of the future
    Buffer.from('51024e73', 'hex'),
    Buffer.concat([Buffer.of(0x60, 5), Buffer.from('later')]),
  ];
  const spread = pay(
    [chain.coinbases[1]],
    [
      ...kinds.map((script) => ({ sats: BTC, script })),
      { sats: 0, script: note('a note') },
      { sats: 0, script: Buffer.from('6a', 'hex') },
      // nothing the node knows a name for
      { sats: 546, script: Buffer.from('6151ac4dffff', 'hex') },
    ],
    { witness: OPEN_WITNESS },
  );
  await chain.add([spread]);
  const coins = coinsOf(spread.tx);
  const spend = (index: number, more: Parameters<typeof pay>[2] = {}) =>
    pay([coins[index]], [{ sats: BTC - FEE * (index + 1), script: OPEN_OUTPUT }], more);
  const signed = (index: number, scripts: Parameters<SampleChain['sign']>[3] = {}) =>
    chain.sign(spend(index), [coins[index]], keys, scripts);
  await chain.add([
    await signed(0),
    await signed(1),
    await signed(2),
    await signed(3),
    spend(4, { witness: [leaf, tree.control] }),
    await signed(5),
    await signed(6, { redeem: twoOfThree }),
    await signed(7, { witness: twoOfThree }),
    await signed(8, { redeem: wrapped }),
    await signed(9, { redeem: payToWitnessScriptHash(twoOfThree), witness: twoOfThree }),
    spend(10),
    spend(11, { witness: [Buffer.alloc(0), Buffer.alloc(0)] }),
  ]);
  await addUnconfirmedParents(chain, keys[0]);
}

/** A parent and two children in one block (CPFP), inputs that may be replaced (RBF), and a time lock. */
async function addUnconfirmedParents(chain: SampleChain, key: ReturnType<typeof keyOf>): Promise<void> {
  const half = chain.coinbases[2].sats / 2;
  const parent = pay(
    [chain.coinbases[2]],
    [
      { sats: half, script: payToWitnessKeyHash(key) },
      { sats: half, script: OPEN_OUTPUT },
    ],
    { witness: OPEN_WITNESS, sequence: 0 },
  );
  const [first, second] = coinsOf(parent.tx);
  const child = await chain.sign(pay([first], [{ sats: half - 90_000, script: OPEN_OUTPUT }]), [first], [key]);
  const locked = pay([second], [{ sats: half - 1, script: OPEN_OUTPUT }], {
    witness: OPEN_WITNESS,
    sequence: 0xfffffffe,
    lockTime: chain.height,
  });
  const grandchild = pay([...coinsOf(child.tx), ...coinsOf(locked.tx)], [{ sats: BTC, script: OPEN_OUTPUT }], {
    witness: OPEN_WITNESS,
  });
  await chain.add([parent, child, locked, grandchild]);
}
