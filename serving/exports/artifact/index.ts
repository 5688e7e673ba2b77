/** What the rest of the exports uses of artifacts. */
export { ArtifactFault, type ArtifactFaultKind } from './faults.ts';
export { FORMATS } from './formats.ts';
export { isIntact, MANIFEST_NAME, readArtifact } from './manifest.ts';
export { removeArtifact } from './place.ts';
export type {
  Artifact,
  ArtifactDeps,
  ArtifactFormat,
  ArtifactJob,
  ArtifactProgress,
  Manifest,
  ManifestFile,
  WrittenFile,
} from './types.ts';
export { writeArtifact } from './write.ts';
