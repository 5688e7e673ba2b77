/** The Merkle tree of the proof log against published roots of RFC 6962, a naive tree, and itself for every size. */
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  consistencyProof,
  GrowingTree,
  type Hash,
  type HashAt,
  inclusionProof,
  leafHash,
  treeRoot,
  verifyConsistency,
  verifyInclusion,
} from '../../shared/proof-log/merkle.ts';

/** The test vectors of Certificate Transparency's own implementations. */
const LEAVES = ['', '00', '10', '2021', '3031', '40414243', '5051525354555657', '606162636465666768696a6b6c6d6e6f'];
const ROOTS = [
  '6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d',
  'fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125',
  'aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77',
  'd37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7',
  '4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4',
  '76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef',
  'ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c',
  '5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328',
];

/** RFC 6962, 2.1, as it is written. */
function naive(leaves: readonly Uint8Array[]): Buffer {
  if (leaves.length === 0) return createHash('sha256').digest();
  if (leaves.length === 1) return createHash('sha256').update(Buffer.of(0)).update(leaves[0]).digest();
  let k = 1;
  while (k * 2 < leaves.length) k *= 2;
  return createHash('sha256')
    .update(Buffer.of(1))
    .update(naive(leaves.slice(0, k)))
    .update(naive(leaves.slice(k)))
    .digest();
}

function grown(leaves: readonly Uint8Array[]): { readonly tree: GrowingTree; readonly at: HashAt } {
  const hashes = new Map<string, Hash>();
  const tree = new GrowingTree();
  for (const leaf of leaves) tree.add(leafHash(leaf), (level, index, hash) => hashes.set(`${level}/${index}`, hash));
  return { tree, at: async (level, index) => hashes.get(`${level}/${index}`)! };
}

const leavesOf = (size: number): Buffer[] => Array.from({ length: size }, (_, index) => Buffer.from(`leaf ${index}`));

test('the published roots of one to eight leaves', () => {
  const tree = new GrowingTree();
  const roots = LEAVES.map((leaf) => {
    tree.add(leafHash(Buffer.from(leaf, 'hex')));
    return Buffer.from(tree.root).toString('hex');
  });
  expect(roots).toEqual(ROOTS);
});

test('every proof of inclusion and consistency up to 40 leaves holds, and none of them for another leaf, size or root', async () => {
  const leaves = leavesOf(40);
  const { at } = grown(leaves);
  for (let size = 1; size <= 40; size++) {
    const root = naive(leaves.slice(0, size));
    expect(Buffer.from(await treeRoot(size, at))).toEqual(root);
    for (let index = 0; index < size; index++) {
      const proof = await inclusionProof(index, size, at);
      expect(verifyInclusion(leafHash(leaves[index]), index, size, proof, root)).toBe(true);
      expect(verifyInclusion(leafHash(leaves[index]), (index + 1) % size, size, proof, root)).toBe(size === 1);
      expect(verifyInclusion(leafHash(Buffer.from('another')), index, size, proof, root)).toBe(false);
      for (const none of [-1 - index, index - size, index + 0.5, Number.NaN]) {
        expect(verifyInclusion(leafHash(leaves[index]), none, size, proof, root)).toBe(false);
      }
      expect(verifyInclusion(leafHash(leaves[index]), index, size, [...proof, root], root)).toBe(false);
      expect(verifyInclusion(leafHash(leaves[index]), index, size, proof.slice(1), root)).toBe(size === 1);
      // A proof for this root has too few hashes for a tree that is two levels higher.
      expect(verifyInclusion(leafHash(leaves[index]), index, 4 * size + 1, proof, root)).toBe(false);
    }
    for (let old = 0; old <= size; old++) {
      const before = { size: old, root: naive(leaves.slice(0, old)) };
      const proof = await consistencyProof(old, size, at);
      expect(verifyConsistency(before, { size, root }, proof)).toBe(true);
      const other = { size: old, root: naive([...leaves.slice(1, old), Buffer.from('forged')]) };
      if (old > 0) expect(verifyConsistency(other, { size, root }, proof)).toBe(false);
      if (old > 0) expect(verifyConsistency(before, { size: 4 * size + 1, root }, proof)).toBe(false);
      expect(verifyConsistency(before, { size, root: naive(leaves) }, proof)).toBe(size === 40 || old === 0);
    }
  }
});

test('a tree that is loaded from its subtrees grows like one that never stopped', async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 0, max: 600 }), fc.integer({ min: 0, max: 300 }), async (first, more) => {
      const leaves = leavesOf(first + more);
      const { at } = grown(leaves.slice(0, first));
      const tree = await GrowingTree.load(first, at);
      for (const leaf of leaves.slice(first)) tree.add(leafHash(leaf));
      expect(Buffer.from(tree.root)).toEqual(naive(leaves));
      expect(tree.size).toBe(first + more);
    }),
    { numRuns: 50 },
  );
});
